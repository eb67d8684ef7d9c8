"""What a low-precision dtype makes of a literal."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def fits(value: np.ndarray, dtype: str) -> bool:
    """Whether `dtype` holds `value`: nothing overflows or vanishes, no error is above the largest element's rounding.

    The last fails where all elements are subnormal in `dtype`: in float16, 1e-7 is off by a fifth.
    """
    exact = value.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        rounded = value.astype(dtype).astype(np.float64)
    finite = np.isfinite(exact)
    exact, rounded = exact[finite], rounded[finite]
    if not np.all(np.isfinite(rounded)) or np.any((rounded == 0) & (exact != 0)):
        return False
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    return bool(np.max(np.abs(rounded - exact), initial=0.0) <= unit * np.max(np.abs(exact), initial=0.0))
