"""Special functions of each element, and the bits of its number: computed in float64, and rounded once.

`special.lgamma(x)` is a call of `relax.special.lgamma`. Operands have one shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dtype_of, same_shape, shape_of
from autocast.operators.operator import Operator, define
from autocast.operators.own.special import bessel, bits, errors, gamma
from autocast.operators.own.special.scalars import Scalar, let


def _alike(call: relax.Call) -> relax.TensorType:
    """The type of all arguments; an error where they differ."""
    first = call.args[0]
    for other in call.args[1:]:
        if not same_shape(shape_of(first), shape_of(other)) or dtype_of(first) != dtype_of(other):
            given = ", ".join(str(argument.ty) for argument in call.args)
            raise IllFormedModuleError(f"{call.op.name}: got ({given}), expected tensors of one type")
    return first.ty


def _in_float64(function: Callable[..., Scalar]) -> Callable[..., te.Tensor]:
    """What computes a function of numbers in float64 for each element of tensors."""

    @functools.wraps(function)
    def compute(*tensors: te.Tensor, **attributes: Any) -> te.Tensor:
        def bound(values: tuple[Scalar, ...], rest: tuple[Scalar, ...]) -> Scalar:
            if not rest:
                return function(*values, **attributes)
            return let(rest[0].astype("float64"), lambda value: bound((*values, value), rest[1:]))

        def element(*at: Any) -> Scalar:
            return bound((), tuple(tensor(*at) for tensor in tensors)).astype(tensors[0].dtype)

        return te.compute(tensors[0].shape, element, name=function.__name__)

    return compute


def _function(function: Callable[..., Scalar], summary: str, name: str = "", arguments: str = "x") -> Operator:
    name = f"relax.special.{name or function.__name__}"
    return define(name, arguments, result=_alike, compute=_in_float64(function), summary=summary)


def _with_dtype(dtype: str) -> Callable[[relax.Call], tvm.ir.Type]:
    return lambda call: relax.TensorType(shape_of(call.args[0]), dtype)


erfc = _function(errors.erfc, "1 - erf(x), also where that is small")
erfcx = _function(errors.erfcx, "exp(x^2) erfc(x)")
erfinv = _function(errors.erfinv, "y with erf(y) = x")
log_ndtr = _function(errors.log_ndtr, "the logarithm of the probability that a normal number is below x")
ndtri = _function(errors.ndtri, "x that a normal number is below with the probability p", arguments="p")
lgamma = _function(gamma.lgamma, "log |gamma(x)|")
digamma = _function(gamma.digamma, "the derivative of lgamma")
#: `polygamma(x, n=2)`
polygamma = _function(gamma.polygamma, "the derivative of order n of digamma")
zeta = _function(gamma.zeta, "the sum of (q + k)^-s over all k >= 0", arguments="s q")
i0 = _function(bessel.i0, "the modified Bessel function of order 0")
i0e = _function(bessel.i0e, "exp(-|x|) i0(x)")
i1 = _function(bessel.i1, "the modified Bessel function of order 1")
i1e = _function(bessel.i1e, "exp(-|x|) i1(x)")
bessel_j0 = _function(bessel.of_c_library("j0"), "the Bessel function of the first kind of order 0", "bessel_j0")
bessel_j1 = _function(bessel.of_c_library("j1"), "the Bessel function of the first kind of order 1", "bessel_j1")
bessel_y0 = _function(bessel.of_c_library("y0"), "the Bessel function of the second kind of order 0", "bessel_y0")
bessel_y1 = _function(bessel.of_c_library("y1"), "the Bessel function of the second kind of order 1", "bessel_y1")
signbit = define(
    "relax.special.signbit", "x", result=_with_dtype("bool"), compute=bits.signbit, summary="whether the sign is minus"
)
nextafter = define(
    "relax.special.nextafter", "x y", result=_alike, compute=bits.nextafter, summary="the next number from x towards y"
)
frexp = define(
    "relax.special.frexp",
    "x",
    result=lambda call: tvm.ir.TupleType([call.args[0].ty, _with_dtype("int32")(call)]),
    compute=bits.frexp,
    summary="m of at least 1/2 and below 1, and n, with x = m 2^n",
)
