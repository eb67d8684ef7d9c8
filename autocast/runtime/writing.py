"""What a model writes into its inputs: the last results of a call, in the memory that its caller passed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi

from autocast.errors import InputError
from autocast.runtime.overlap import shared_with
from autocast.runtime.tensors import bytes_of, copy, copy_into, is_torch, to_numpy, to_tensor


class SharedInputsError(InputError):
    """An input that a model writes into shares elements with another, which would change with it."""


def check_writable(written: Sequence[int], inputs: Sequence[Any]) -> None:
    """Raise InputError unless the inputs at these positions can be written into, and no others change with them."""
    for position in written:
        target = inputs[position]
        if is_torch(target):
            sizes = zip(target.shape, target.stride(), strict=True)
            can_be_written = not any(size > 1 and not stride for size, stride in sizes)
        elif isinstance(target, np.ndarray):
            can_be_written = target.flags.writeable
        else:
            can_be_written = isinstance(target, tvm_ffi.Tensor) and target.is_contiguous()
        if not can_be_written:
            raise InputError(
                f"main: the model writes into an input, which is a {type(target).__name__} that cannot be written; "
                "expected a torch tensor whose elements lie apart, a numpy array or a dense TVM tensor of one's own. "
                "Pass a copy: value.clone() or numpy.array(value)"
            )
    if written and (pair := shared_with(written, inputs)) is not None:
        raise SharedInputsError(
            f"main: the model writes into its input {pair[0]}, of which input {pair[1]} is a view, or a part; expected "
            "inputs that share no elements with it. Pass a copy of one of them: value.clone() or numpy.array(value)"
        )


def write_outputs(outputs: Any, inputs: Sequence[Any]) -> Any:
    """Write the last of a call's outputs into these inputs; what is left of the outputs, one or a tuple of them."""
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    values = tuple(_apart(value, inputs) for value in values)
    results = values[: len(values) - len(inputs)]
    for value, target in zip(values[len(results) :], inputs, strict=True):
        write_one(value, target)
    return results[0] if len(results) == 1 else results


def write_one(value: Any, target: Any) -> None:
    """Overwrite the elements of `target`, which has the shape and the dtype of `value`."""
    if is_torch(target):
        torch = sys.modules["torch"]
        with torch.no_grad():
            target.copy_(value if is_torch(value) else torch.from_dlpack(to_tensor(value)))
    elif isinstance(target, np.ndarray):
        np.copyto(target, to_numpy(to_tensor(value)))
    else:
        copy_into(target, to_tensor(value))


def write_back(written: Sequence[int], arguments: Sequence[Any], inputs: Sequence[Any]) -> None:
    """What a function has written into some of its `arguments`, into the inputs that these are or are copies of."""
    for position in written:
        if arguments[position] is not inputs[position]:
            write_one(arguments[position], inputs[position])


def _apart(value: Any, inputs: Sequence[Any]) -> Any:
    """An output in memory that is not of these inputs."""
    if not (is_torch(value) or isinstance(value, tvm_ffi.Tensor)):
        return value
    start = value.data_ptr()
    for one in inputs:
        first, last = _span(one)
        if start < last and first < start + bytes_of(value):
            return value.clone() if is_torch(value) else copy(value)
    return value


def _span(tensor: Any) -> tuple[int, int]:
    """Where the memory of a tensor begins, and where it ends."""
    if is_torch(tensor):
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    if isinstance(tensor, tvm_ffi.Tensor):
        return tensor.data_ptr(), tensor.data_ptr() + bytes_of(tensor)
    return 0, 0  # of numpy's arrays all has been copied
