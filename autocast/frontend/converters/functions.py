"""Functions of one element whose small results need operators of their own, or whose constants need digits."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import fx
from tvm import relax

from autocast.frontend.converters.helpers import Converter, cast
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of
from autocast.operators import own

op = relax.op

#: A function of a node's tensors, already emitted in the dtype that is computed in.
_Function = Callable[["Importer", fx.Node, relax.Expr], relax.Expr]


def wide(dtype: str) -> str:
    """The dtype that torch computes functions of `dtype` in, numbers included."""
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def _computed_wide(function: _Function) -> Converter:
    """A converter that computes a function of one tensor with numbers of full precision, and rounds its result once."""

    def convert(importer: Importer, node: fx.Node) -> relax.Expr:
        dtype = importer.dtype(node)
        x = cast(importer, importer.arg(node, 0, "self"), wide(dtype))
        return cast(importer, importer.emit(function(importer, node, x)), dtype)

    return convert


def _simple(operator: Callable[[relax.Expr], relax.Expr]) -> Converter:
    def convert(importer: Importer, node: fx.Node) -> relax.Expr:
        return importer.emit(operator(cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))))

    return convert


def _number(value: float, like: relax.Expr) -> relax.Expr:
    return relax.const(value, dtype_of(like))


def _elu(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    """ELU; SELU is one of these."""
    return _exponential(importer, x, *(float(importer.arg(node, i, "", 1)) for i in (1, 2, 3)))


def _celu(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    alpha = float(importer.arg(node, 1, "alpha", 1))
    return _exponential(importer, x, alpha, 1.0, 1 / alpha)


def _exponential(importer: Importer, x: relax.Expr, alpha: float, scale: float, input_scale: float) -> relax.Expr:
    """`scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))`."""
    zero = _number(0.0, x)
    positive = importer.emit(op.greater(x, zero))
    # The branch that is not taken is differentiated too, and must not overflow.
    low = own.expm1(op.multiply(op.where(positive, zero, x), _number(input_scale, x)))
    low = op.multiply(low, _number(alpha * scale, x))
    return op.where(positive, op.multiply(x, _number(scale, x)), low)


def _softplus(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    beta, threshold = importer.arg(node, 1, "beta", 1.0), importer.arg(node, 2, "threshold", 20.0)
    return op.nn.softplus(x, float(beta), float(threshold))


def _mish(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    return op.multiply(x, op.tanh(op.nn.softplus(x)))


def _logarithm(base: float) -> _Function:
    return lambda importer, node, x: op.multiply(op.log(x), _number(1 / math.log(base), x))


def _exp2(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    return op.power(_number(2.0, x), x)


def _hardtanh(importer: Importer, node: fx.Node) -> relax.Expr:
    low, high = (importer.arg(node, i, name, of) for i, name, of in ((1, "min_val", -1.0), (2, "max_val", 1.0)))
    return importer.emit(_between(importer.arg(node, 0, "self"), low, high))


def _between(x: relax.Expr, low: float, high: float) -> relax.Expr:
    """A clip without a slope at its bounds; of integers, which have no slope, a clip."""
    if "float" in str(dtype_of(x)):
        if math.isnan(low) or math.isnan(high):
            return op.maximum(x, relax.const(math.nan, str(dtype_of(x))))
        return own.hardtanh(x, low=float(low), high=float(high))
    return op.clip(x, low, high)


def _gate(x: relax.Expr) -> relax.Expr:
    """0 to 6 where x is -3 to 3. `x + 3` is rounded, and its slope would end one number too early."""
    return op.add(_between(x, -3, 3), _number(3, x))


def _rounded(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    """Rounded to so many decimals, or to so many powers of ten."""
    decimals = int(node.kwargs.get("decimals", 0))
    power = _number(10.0 ** abs(decimals), x)
    if decimals < 0:
        return op.multiply(op.round(op.divide(x, power)), power)
    return op.divide(op.round(op.multiply(x, power)), power) if decimals else op.round(x)


def _angle(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    """0 or pi, and NaN of NaN."""
    angle = op.where(op.less(x, _number(0.0, x)), _number(math.pi, x), _number(0.0, x))
    return op.where(op.isnan(x), x, angle)


#: Converters by the name of the overload.
FUNCTIONS: dict[str, Converter] = {
    "angle.default": _computed_wide(_angle),
    "celu.default": _computed_wide(_celu),
    "elu.default": _computed_wide(_elu),
    "exp2.default": _computed_wide(_exp2),
    "expm1.default": _simple(own.expm1),
    "hardsigmoid.default": _computed_wide(lambda importer, node, x: op.divide(_gate(x), _number(6, x))),
    "hardswish.default": _computed_wide(lambda importer, node, x: op.divide(op.multiply(x, _gate(x)), _number(6, x))),
    "hardtanh.default": _hardtanh,
    "log10.default": _computed_wide(_logarithm(10.0)),
    "log1p.default": _simple(own.log1p),
    "log2.default": _computed_wide(_logarithm(2.0)),
    "mish.default": _computed_wide(_mish),
    "relu6.default": lambda importer, node: importer.emit(_between(importer.arg(node, 0, "self"), 0, 6)),
    "round.decimals": _computed_wide(_rounded),
    "softplus.default": _computed_wide(_softplus),
}
