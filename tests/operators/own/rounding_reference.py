"""Stochastic rounding in numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.operators.own.dropout_reference import bits_of


def rounded(x: np.ndarray, seed: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """`x`, float32, in bfloat16."""
    bits = x.view("uint32") + (bits_of(x.shape, seed, step, stream) >> np.uint32(16))
    truncated = (bits & np.uint32(0xFFFF0000)).view("float32")
    return np.where(np.isnan(x), x, truncated).astype(ml_dtypes.bfloat16)
