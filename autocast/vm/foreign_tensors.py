"""Tensors of torch and numpy as TVM's, and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from autocast import ir
from autocast.errors import InputError


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dtype_name(arg: Any) -> str:
    """The dtype of a tensor of torch, numpy or TVM, such as "float32"."""
    return str(arg.dtype).removeprefix("torch.")


def to_tvm(arg: Any) -> tvm.runtime.Tensor:
    """`arg` as a TVM tensor: shares memory where it is dense and aligned, else a copy.

    One without elements is made anew: torch says other strides of it than kernels expect.

    Raises
    ------
    InputError
        A torch tensor that is not in the CPU's memory.
    """
    if 0 in arg.shape:
        return tvm.runtime.empty(tuple(arg.shape), dtype_name(arg))
    if isinstance(arg, tvm.runtime.Tensor):
        return arg
    if isinstance(arg, np.ndarray):
        return tvm.runtime.tensor(np.ascontiguousarray(arg).reshape(arg.shape))
    if arg.device.type != "cpu":
        raise InputError(f"main: an input is on {arg.device}, expected the cpu. Call .cpu() on it")
    dense = arg.detach() if arg.requires_grad else arg
    if arg.is_conj() or arg.is_neg() or not arg.is_contiguous():
        dense = dense.contiguous().resolve_conj().resolve_neg()
    if dense.data_ptr() % ir.ALIGNMENT:
        dense = dense.clone()
    return tvm.runtime.from_dlpack(dense)


def from_tvm(value: Any, kind: str) -> Any:
    """An output as `kind`: "torch" and "tvm" share memory, "numpy" copies.

    Tuples, nested ones too, and shapes become tuples; numbers, None and objects of the virtual machine stay.
    """
    if isinstance(value, tvm.runtime.ShapeTuple):
        return tuple(int(size) for size in value)
    if isinstance(value, tvm_ffi.Array | tuple | list):
        return tuple(from_tvm(field, kind) for field in value)
    if not isinstance(value, tvm.runtime.Tensor):
        return value
    if kind == "torch":
        import torch

        return torch.from_dlpack(value)
    return value.numpy() if kind == "numpy" else value


def kind_of(args: Sequence[Any]) -> str:
    """What outputs are returned as: "torch" if any input is a torch tensor, else "numpy" if any is, else "tvm"."""
    if any(is_torch(arg) for arg in args):
        return "torch"
    if any(isinstance(arg, np.ndarray) for arg in args):
        return "numpy"
    return "tvm" if args else "numpy"
