"""How kernels' tensors are stored, and what rounding to that does."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
#: Half the distance between 1 and the next number: the relative error of one rounding.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
#: The absolute error of a rounding to subnormal numbers.
SMALLEST = {"float32": 0.0, "bfloat16": 0.0, "float16": 2.0**-25}
