"""What a low-precision dtype makes of numbers: of a literal, and of a parameter."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np


class Rounding(NamedTuple):
    """What rounding does to an array.

    Attributes
    ----------
    overflowed, vanished
        How many finite elements become infinite, and how many others become zero.
    is_precise
        Whether no error is above the largest element's rounding. It fails where all elements are subnormal: in
        float16, 1e-7 is off by a fifth.
    """

    overflowed: int
    vanished: int
    is_precise: bool


def rounding(value: np.ndarray, dtype: str) -> Rounding:
    """What becomes of `value` in `dtype`."""
    exact = value if value.dtype == np.float32 else value.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        rounded = value.astype(dtype).astype(exact.dtype)
    finite = np.isfinite(exact)
    overflowed = finite & ~np.isfinite(rounded)
    vanished = (rounded == 0) & (exact != 0)
    kept = finite & ~overflowed
    unit = exact.dtype.type(float(ml_dtypes.finfo(dtype).eps) / 2)
    error = np.max(np.abs(np.subtract(rounded, exact, where=kept, out=np.zeros_like(exact))), initial=0)
    is_precise = bool(error <= unit * np.max(np.abs(exact), where=kept, initial=0))
    return Rounding(int(np.count_nonzero(overflowed)), int(np.count_nonzero(vanished)), is_precise)


def fits(value: np.ndarray, dtype: str) -> bool:
    """Whether `dtype` holds the literal `value`: nothing overflows or vanishes, and it is precise (see `Rounding`)."""
    found = rounding(value, dtype)
    return not found.overflowed and not found.vanished and found.is_precise


def _is_surely_held(matrix: np.ndarray, limits: ml_dtypes.finfo) -> bool:
    """Whether the largest element is a normal number: it is between the roots of the mean square and of their sum.

    A dot product takes a fifth of the time of a maximum and a minimum. Factors of two are far from its own rounding.
    """
    flat = matrix.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(flat, flat))
    normal, largest = 2 * float(limits.smallest_normal), float(limits.max) / 2
    return squares <= largest**2 and squares >= normal**2 * flat.size > 0


def out_of_range(value: np.ndarray, dtype: str) -> str | None:
    """Why `dtype` cannot store the parameter `value`; None where it can.

    In a matrix an element may vanish if that is no larger an error than the rounding of the largest: products add them
    up, and of millions of weights some are that small. In a vector each element counts, as a scale of its own.
    """
    limits = ml_dtypes.finfo(dtype)
    if value.ndim > 1 and _is_surely_held(value, limits):
        return None
    if value.size:
        bound = max(value.max(), -value.min())
        # As of nearly all matrices: the rounding of a normal number is as large as any below. Momenta begin as zeros.
        if bound == 0 or (value.ndim > 1 and float(limits.smallest_normal) <= bound <= float(limits.max)):
            return None
    found = rounding(value, dtype)
    largest = float(np.max(np.abs(value), where=np.isfinite(value), initial=0))
    if found.overflowed:
        limit = float(limits.max)
        return f"{found.overflowed} of {value.size} elements overflow: the largest is {largest:.3g}, above {limit:.3g}"
    if found.vanished and (value.ndim < 2 or not found.is_precise):
        return f"{found.vanished} of {value.size} elements underflow to zero: the largest is {largest:.3g}"
    if not found.is_precise:
        return f"its elements are subnormal: the largest is {largest:.3g}"
    return None
