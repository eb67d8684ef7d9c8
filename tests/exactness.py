"""How near functions of one element come to their exact results: inputs, and measures of the error."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from scipy import special

#: A function in float64.
Exact = Callable[[np.ndarray], np.ndarray]

#: Units in the last place that a float32 result may be off by, and the least share of nearest numbers in 16 bits.
UNITS, SHARE = 4.0, 0.99

NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}

EXACT: dict[str, Exact] = {
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * special.expit(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "sigmoid": special.expit,
}


def inputs(dtype: str) -> np.ndarray:
    """All 65,536 numbers of a 16-bit dtype; of float32 some of every exponent, the smallest, and many near zero."""
    if dtype != "float32":
        return np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])
    mantissas = np.linspace(0, (1 << 23) - 1, 61, dtype=np.uint32)
    everywhere = (np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas).ravel()
    half = np.concatenate([everywhere, np.arange(1, 512, dtype=np.uint32)]).view(np.float32)
    near = [np.linspace(0, end, 1 << 14, dtype=np.float32) for end in (2, 110)]
    half = np.concatenate([half, *near])
    return np.concatenate([half, -half, np.float32([np.inf, -np.inf, np.nan])])


def units(x: np.ndarray, got: np.ndarray, exact: Exact) -> np.ndarray:
    """The errors of float32 results in units in the last place; infinite for a wrong infinity or NaN."""
    with np.errstate(all="ignore"):
        wanted = np.asarray(exact(x.astype(np.float64)))
        rounded = wanted.astype(np.float32)
        errors = np.abs(got.astype(np.float64) - wanted) / np.spacing(np.abs(rounded))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0.0, np.where(np.isfinite(got) & np.isfinite(rounded), errors, np.inf))


def misses(x: np.ndarray, got: np.ndarray, exact: Exact) -> np.ndarray:
    """Where 16-bit results are not the nearest numbers."""
    with np.errstate(all="ignore"):
        nearest = np.asarray(exact(x.astype(np.float64))).astype(x.dtype).astype(np.float32)
    result = got.astype(np.float32)
    return ~((result == nearest) | (np.isnan(result) & np.isnan(nearest)))
