"""Special functions of each element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special
from tvm import relax

from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import FUNCTION, Tensor, elementwise

_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{
        name: getattr(special, name)
        for name in ["digamma", "erfc", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "log_ndtr", "ndtri", "zeta"]
    },
    **{f"bessel_{name}": getattr(special, name) for name in ("j0", "j1", "y0", "y1")},
    "lgamma": special.gammaln,
}

for _name, _function in _FUNCTIONS.items():

    @operator(f"relax.special.{_name}", units=FUNCTION)
    def _computed(call: relax.Call, *x: Tensor, function: Callable[..., np.ndarray] = _function) -> Tensor:
        return elementwise(function, *x)


@operator("relax.special.polygamma", units=FUNCTION)
def _polygamma(call: relax.Call, x: Tensor) -> Tensor:
    return elementwise(lambda a: special.polygamma(int(call.attrs["n"]), a), x)


@operator("relax.special.signbit", units=0)
def _signbit(call: relax.Call, x: Tensor) -> Tensor:
    return elementwise(np.signbit, x, dtype=dtype_of(call))


@operator("relax.special.nextafter", units=0)
def _nextafter(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    return elementwise(lambda a, b: np.nextafter(a.astype(x.dtype), b.astype(x.dtype)).astype(np.float64), x, y)


@operator("relax.special.frexp", units=0)
def _frexp(call: relax.Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return elementwise(lambda a: np.frexp(a)[0], x), elementwise(lambda a: np.frexp(a)[1], x, dtype="int32")
