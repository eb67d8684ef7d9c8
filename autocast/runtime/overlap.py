"""Inputs that share elements: what is written into one of them changes the other."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from autocast.runtime.tensors import is_torch

#: How many steps a proof may take that two tensors whose rows alternate in memory have no element in common.
_STEPS = 100_000


def shared_with(written: Collection[int], inputs: Sequence[Any]) -> tuple[int, int] | None:
    """Positions of an input that is `written` and of another that has elements of it; None if there are none."""
    spans = sorted((*span, position) for position, value in enumerate(inputs) if (span := _span(value)) is not None)
    near: list[tuple[int, int]] = []  # of those that came before and reach as far as here: their ends, and which
    for first, last, position in spans:
        near = [other for other in near if other[0] > first]
        for _, other in near:
            pair = (position, other) if position in written else (other, position)
            if pair[0] in written and _share(inputs[position], inputs[other]):
                return pair
        near.append((last, position))
    return None


def _span(value: Any) -> tuple[int, int] | None:
    """The first byte of a tensor, and the one behind the last; None of what is no tensor, is empty, or is of TVM: these
    lie apart."""
    if is_torch(value) and value.numel():
        first = value.data_ptr()
        return first, first + (value.nbytes if value.is_contiguous() else _length(value))
    if isinstance(value, np.ndarray) and value.size:
        first = value.__array_interface__["data"][0]
        steps = [(size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True)]
        return first + sum(min(step, 0) for step in steps), first + sum(max(step, 0) for step in steps) + value.itemsize
    return None


def _length(tensor: Any) -> int:
    """The bytes from the first element of a torch tensor to the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int((sum((size - 1) * stride for size, stride in steps) + 1) * tensor.itemsize)


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors have a byte in common."""
    try:
        return bool(np.shares_memory(_bytes(one), _bytes(other), _STEPS))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _bytes(value: Any) -> np.ndarray:
    """The memory of a tensor byte by byte, in its own shape: of no dtype, and not to be read on another device."""
    if isinstance(value, np.ndarray):
        return value
    strides = [stride * value.itemsize for stride in value.stride()]
    memory = (ctypes.c_uint8 * _length(value)).from_address(value.data_ptr())
    return np.ndarray((*value.shape, value.itemsize), np.uint8, memoryview(memory), 0, (*strides, 1))
