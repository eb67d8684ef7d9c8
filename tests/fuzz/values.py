"""Tensors with an error bound: what a module computes exactly, and how far a compiled one may be from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Half the distance from 1 to the next number.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
#: The largest numbers: what comes near them may be an infinity in a compiled module.
LARGEST = {"float64": 1e300, "float32": 1e37, "bfloat16": 1e37, "float16": 6.0e4}
#: Half the distance between the smallest numbers; kernels may take subnormal float32 numbers for zeros.
SMALLEST = {"float64": 1e-300, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-25}
#: Functions are right to four units in the last place, that is eight times the rounding.
FUNCTION = 8.0


def is_float(dtype: str) -> bool:
    """Whether values of this dtype are rounded."""
    return dtype in ROUNDING


@dataclass(frozen=True)
class Tensor:
    """Exact values, and how far from each a compiled module may be.

    Attributes
    ----------
    value
        float64, int64 or bool, whatever `dtype` is.
    error
        float64, of the same shape. Integers and booleans that a compiled module may rightly get wrong, such as a
        comparison of numbers that are equal but for rounding, have an error of 1 or more.
    dtype
        What the module stores.
    """

    value: np.ndarray
    error: np.ndarray
    dtype: str

    @classmethod
    def of(cls, value: Any, error: Any, dtype: str) -> Tensor:
        """A tensor with its integers wrapped to their width, and an error of its own for each element."""
        value = np.asarray(value)
        if is_float(dtype):
            value = value.astype(np.float64)
        elif dtype == "bool":
            value = value.astype(np.bool_)
        else:
            value = value.astype(np.int64).astype(dtype).astype(np.int64)
        error = np.broadcast_to(np.asarray(error, np.float64), value.shape)
        return cls(value, np.where(np.isnan(error), np.inf, error), dtype)

    @classmethod
    def exact(cls, value: Any, dtype: str) -> Tensor:
        """A tensor that every module knows exactly."""
        return cls.of(value, 0.0, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.value.shape

    @property
    def is_float(self) -> bool:
        """Whether its values are rounded."""
        return is_float(self.dtype)

    def rounded(self, amp: str | None, units: float = 1.0) -> Tensor:
        """The same, stored once more: in `amp`, if that is coarser; computed to `units` roundings of float32."""
        if not self.is_float:
            return self
        dtype = self.dtype
        if amp is not None and ROUNDING[amp] > ROUNDING[dtype] and dtype != "float64":
            dtype = amp
        size = np.abs(self.value) + self.error
        inner = ROUNDING["float64" if self.dtype == "float64" else "float32"]
        with np.errstate(invalid="ignore", over="ignore"):
            error = self.error + size * (ROUNDING[dtype] + inner * units) + SMALLEST[dtype]
            overflows = size * (1 + 2 * ROUNDING[dtype]) > min(LARGEST[dtype], LARGEST[self.dtype])
        if amp == "float16" and dtype == "bfloat16":  # which may be stored as float16 on its way
            overflows |= size > LARGEST["float16"]
            error = error + SMALLEST["float16"]
        return Tensor(self.value, np.where(overflows | np.isnan(error), np.inf, error), self.dtype)


def largest_error(candidates: Sequence[np.ndarray], value: np.ndarray) -> np.ndarray:
    """How far, at most, any of `candidates` is from `value`; infinite where one of them is no number."""
    error = np.zeros(value.shape)
    for candidate in candidates:
        with np.errstate(invalid="ignore"):
            off = np.abs(np.asarray(candidate, np.float64) - np.asarray(value, np.float64))
        same = np.asarray(candidate == value) | (np.isnan(candidate) & np.isnan(value))
        error = np.maximum(error, np.where(same, 0.0, np.where(np.isnan(off), np.inf, off)))
    return error


def elementwise(function: Callable[..., np.ndarray], *operands: Tensor, dtype: str | None = None) -> Tensor:
    """`function` of each element; it must rise or fall with each operand over the width of its error.

    Steps, such as `floor` and comparisons, do as well as smooth functions: if they may fall on either side, the
    error is the height of the step.
    """
    dtype = dtype or operands[0].dtype
    with np.errstate(all="ignore"):
        value = np.asarray(function(*[operand.value for operand in operands]))
        uncertain = [i for i, operand in enumerate(operands) if operand.error.any()]
        corners = []
        for signs in itertools.product((-1, 1), repeat=len(uncertain)):
            moved: list[np.ndarray] = [operand.value for operand in operands]
            for i, sign in zip(uncertain, signs, strict=True):
                moved[i] = shifted(operands[i], sign)
            corners.append(np.asarray(function(*moved)))
    return Tensor.of(value, largest_error(corners, value) if uncertain else 0.0, dtype)


def shifted(operand: Tensor, sign: int) -> np.ndarray:
    """The values at one end of what they may be."""
    if operand.value.dtype == np.bool_:
        return operand.value | (operand.error > 0) if sign > 0 else operand.value & ~(operand.error > 0)
    if operand.value.dtype == np.int64:
        return operand.value + sign * np.minimum(operand.error, 2**31).astype(np.int64)
    return np.asarray(operand.value + sign * operand.error)


def moved(function: Callable[..., np.ndarray], *operands: Tensor, dtype: str | None = None) -> Tensor:
    """What only moves elements, and fills the rest with zeros."""
    value = function(*[operand.value for operand in operands])
    error = function(*[operand.error for operand in operands])
    return Tensor.of(value, error, dtype or operands[0].dtype)


def linear(function: Callable[..., np.ndarray], terms: float, *operands: Tensor, dtype: str | None = None) -> Tensor:
    """What is a sum of products of one element of each operand, of `terms` of them at most.

    Parameters
    ----------
    function
        Takes as many arrays as there are operands, and must be linear in each, with coefficients of 0 or more.
    """
    dtype = dtype or operands[0].dtype
    with np.errstate(all="ignore"):
        value = function(*[operand.value for operand in operands])
        if not is_float(dtype):
            unsure = function(*[operand.error for operand in operands]) if len(operands) == 1 else 0.0
            if len(operands) > 1 and any(operand.error.any() for operand in operands):
                unsure = 1.0
            return Tensor.of(value, unsure, dtype)
        sizes = [np.abs(np.asarray(operand.value, np.float64)) for operand in operands]
        size = function(*sizes)
        widened = function(*[s + operand.error for s, operand in zip(sizes, operands, strict=True)])
        inner = ROUNDING["float64" if dtype == "float64" else "float32"]
        return Tensor.of(value, np.maximum(widened - size, 0) + (terms + 4) * inner * np.abs(widened), dtype)


def bounded(value: np.ndarray, error: Any, dtype: str) -> Tensor:
    """A tensor whose error was derived by whoever calls this."""
    return Tensor.of(value, error, dtype)
