"""What training has reached, in other dtypes and other places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from autocast.errors import InputError
from autocast.messages import check_kind
from autocast.runtime.tensors import is_torch, to_tensor


def copy_to(module: Any, learned: Mapping[str, tvm.runtime.Tensor]) -> None:
    """Write tensors into the parameters and buffers of these names of a torch module; InputError where one is not."""
    import torch

    check_kind("Trainer.to_torch", module, torch.nn.Module, InputError, "the torch module that was imported")
    tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    # The model's are pairs of real numbers where torch's are complex.
    tensors = {name: torch.view_as_real(t.detach()) if t.is_complex() else t for name, t in tensors.items()}
    wrong = [
        name
        for name, tensor in learned.items()
        if name not in tensors or tuple(tensors[name].shape) != tuple(tensor.shape)
    ]
    if wrong:
        raise InputError(
            f"Trainer.to_torch: {type(module).__name__} has no parameters {wrong} of the model's shapes, expected the "
            "module (or one like it) that autocast.from_torch imported"
        )
    with torch.no_grad():
        for name, tensor in learned.items():
            tensors[name].copy_(torch.from_dlpack(tensor))


def in_dtype_of(tensor: tvm.runtime.Tensor, other: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """`tensor`, a copy of it if it has another dtype than `other`: a step may store its parameters low."""
    if tensor.dtype == other.dtype:
        return tensor
    return tvm.runtime.tensor(tensor.numpy().astype(other.numpy().dtype))


def on_host(tensor: Any) -> tvm.runtime.Tensor:
    """A tensor of TVM or torch in this machine's memory, without a copy where it is there already."""
    return to_tensor(tensor.cpu()) if is_torch(tensor) else tensor
