"""Arithmetic with torch's type promotion, and what is a few arithmetic operators in Relax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.frontend.splitting.constants import as_constant
from autocast.ir import dtype_of


def operands(importer: Importer, node: fx.Node, *, numbers_are_wide: bool = False) -> tuple[relax.Expr, relax.Expr]:
    """Both operands in the dtype that torch computes in: that of the result, or their common one for comparisons.

    Where `numbers_are_wide` and a Python number would lose digits in a 16-bit dtype, that is float32.
    """
    metas = [value.meta["val"] if isinstance(value, fx.Node) else value for value in node.args[:2]]
    result = node.meta["val"].dtype
    common = torch.result_type(*metas) if result is torch.bool else result
    alpha = node.kwargs.get("alpha", 1)
    if numbers_are_wide and any(_loses_digits(value, common) for value in (*node.args[:2], alpha)):
        common = torch.float32
    dtype = str(importer._convert_data_type(common))
    left, right = (_operand(importer, importer.arg(node, i, ""), dtype) for i in range(2))
    if isinstance(alpha, fx.Node) or alpha != 1:
        factor = _operand(importer, importer.arg(node, len(node.args), "alpha"), dtype)
        right = importer.emit(relax.op.multiply(right, factor))
    return left, right


def _loses_digits(value: Any, dtype: torch.dtype) -> bool:
    """Whether `value` is a number that a 16-bit floating-point dtype rounds."""
    if dtype not in (torch.bfloat16, torch.float16) or not isinstance(value, int | float):
        return False
    return float(torch.tensor(value, dtype=torch.float64).to(dtype)) != value


def _operand(importer: Importer, value: Any, dtype: str) -> relax.Expr:
    if isinstance(value, bool | int | float):
        return relax.const(value, dtype)
    if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType):
        return value if dtype_of(value) == dtype else importer.emit(relax.op.astype(value, dtype))
    return importer.number(value, dtype)  # a size


def _binary(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    if node.meta["val"].dtype is torch.bool:
        operator = {relax.op.add: relax.op.logical_or, relax.op.multiply: relax.op.logical_and}.get(operator, operator)
    computed = importer.emit(operator(*operands(importer, node, numbers_are_wide=operator in _WITH_WIDE_NUMBERS)))
    return computed if dtype_of(computed) == "bool" else cast(importer, computed, importer.dtype(node))


def _subtract_from(importer: Importer, node: fx.Node) -> relax.Expr:
    """`rsub`, which torch's own decompositions write: `other - self`."""
    if importer.arg(node, 2, "alpha", 1) != 1:
        raise ImportModelError("a factor of what is subtracted")
    subtracted, x = operands(importer, node, numbers_are_wide=True)
    return cast(importer, importer.emit(relax.op.subtract(x, subtracted)), importer.dtype(node))


def _power(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x ** n`, with the operators that other parts recognize for the common exponents."""
    exponent = node.args[1]
    if isinstance(exponent, int | float) and dtype_of(x := importer.arg(node, 0, "self")) == importer.dtype(node):
        special = {1: lambda x: x, 2: relax.op.square, 0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}.get(exponent)
        if special is not None:
            return special(x) if exponent == 1 else importer.emit(special(x))
    if not node.meta["val"].dtype.is_floating_point:
        return _whole_power(importer, node)
    return _binary(importer, node, relax.op.power)


def _whole_power(importer: Importer, node: fx.Node) -> relax.Expr:
    """A power of whole numbers, which wraps around as products do: by squares; of an even number from a table."""
    base, exponent, dtype = importer.arg(node, 0, "self"), node.args[1], importer.dtype(node)
    if isinstance(exponent, int) and exponent >= 0:
        square, result = _operand(importer, base, dtype), None
        while exponent:
            if exponent % 2:
                result = square if result is None else importer.emit(relax.op.multiply(result, square))
            exponent //= 2
            square = importer.emit(relax.op.square(square)) if exponent else square
        return importer.emit(relax.op.ones_like(square)) if result is None else result
    if not isinstance(base, int) or base % 2:
        raise ImportModelError(f"a power of {base if isinstance(base, int) else 'integers'} with exponents that vary")
    bits = torch.iinfo(node.meta["val"].dtype).bits
    powers = torch.pow(base, torch.arange(bits + 1, dtype=node.meta["val"].dtype))  # of the last and of larger ones 0
    places = cast(importer, _operand(importer, importer.arg(node, 1, "exponent"), dtype), "int64")
    negative = importer.emit(relax.op.less(places, relax.const(0, "int64")))
    places = importer.emit(relax.op.where(negative, relax.const(bits, "int64"), places))
    return importer.emit(relax.op.take(as_constant(powers), places, axis=0, mode="clip"))


def _divide(importer: Importer, node: fx.Node) -> relax.Expr:
    mode = node.kwargs.get("rounding_mode")
    operator = relax.op.floor_divide if mode == "floor" else relax.op.divide
    quotient = importer.emit(operator(*operands(importer, node, numbers_are_wide=True)))
    if mode == "trunc" and node.meta["val"].dtype.is_floating_point:
        quotient = importer.emit(relax.op.trunc(quotient))
    return cast(importer, quotient, importer.dtype(node))


def _logical(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    """Logical operators take every value that is not 0 for true."""
    values = [importer.arg(node, i, "") for i in range(len(node.args))]
    return importer.emit(operator(*(_operand(importer, value, "bool") for value in values)))


def _clamp(importer: Importer, node: fx.Node) -> relax.Expr:
    """Between numbers the one operator whose gradient passes where a bound is met, as torch's does."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    bounds = [importer.arg(node, position, name) for position, name in ((1, "min"), (2, "max"))]
    numbers = all(bound is None or (isinstance(bound, int | float) and not math.isnan(bound)) for bound in bounds)
    if numbers and node.meta["val"].dtype.is_floating_point:
        low, high = (-math.inf if bounds[0] is None else bounds[0]), (math.inf if bounds[1] is None else bounds[1])
        return importer.emit(relax.op.clip(_operand(importer, x, dtype), float(low), float(high)))
    for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
        if bound is not None:
            x = importer.emit(operator(_operand(importer, x, dtype), _operand(importer, bound, dtype)))
    return x


def _bitwise_not(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(relax.op.logical_not(x) if dtype_of(x) == "bool" else relax.op.bitwise_not(x))


def _is_finite(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    floating = node.all_input_nodes[0].meta["val"].is_floating_point()
    return importer.emit(relax.op.isfinite(x if floating else cast(importer, x, "float32")))


def _bitwise(
    importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr], logical: Callable[..., relax.Expr]
) -> relax.Expr:
    return _binary(importer, node, logical if node.meta["val"].dtype is torch.bool else operator)


def _shift(importer: Importer, node: fx.Node, left: bool) -> relax.Expr:
    """Bits moved to the left or to the right; by as many as there are, or more, or fewer than none, all of them."""
    dtype = importer.dtype(node)
    x, places = (_operand(importer, importer.arg(node, i, ""), dtype) for i in range(2))
    last = torch.iinfo(node.meta["val"].dtype).bits - 1
    zero, most = relax.const(0, dtype), relax.const(last, dtype)
    inside = relax.op.logical_and(relax.op.greater_equal(places, zero), relax.op.less_equal(places, most))
    if left:
        moved = relax.op.left_shift(x, importer.emit(relax.op.where(inside, places, zero)))
        return importer.emit(relax.op.where(inside, moved, zero))
    moved = relax.op.right_shift(x, importer.emit(relax.op.where(inside, places, most)))
    none = zero if dtype.startswith("uint") else moved
    return importer.emit(relax.op.where(inside, moved, none))


def _extreme_of_numbers(
    importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr], wins: Callable[..., relax.Expr]
) -> relax.Expr:
    """fmax, fmin: of a number and NaN, the number. Of two equal numbers the first one has all of the gradient."""
    x, y = operands(importer, node)
    if not node.meta["val"].dtype.is_floating_point:
        return importer.emit(operator(x, y))
    first = relax.op.logical_or(importer.emit(wins(x, y)), importer.emit(relax.op.isnan(y)))
    return importer.emit(relax.op.where(importer.emit(first), x, y))


def _hypotenuse(importer: Importer, node: fx.Node) -> relax.Expr:
    return hypotenuse(importer, *operands(importer, node))


def hypotenuse(importer: Importer, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """`sqrt(x * x + y * y)`, of which no square is too large or too small."""
    dtype = str(dtype_of(x))
    x, y = (importer.emit(relax.op.abs(value)) for value in (x, y))
    large, small = importer.emit(relax.op.maximum(x, y)), importer.emit(relax.op.minimum(x, y))
    zero, one, infinite = (relax.const(value, dtype) for value in (0.0, 1.0, math.inf))
    plain = importer.emit(relax.op.logical_and(relax.op.greater(large, zero), relax.op.less(large, infinite)))
    ratio = relax.op.where(plain, relax.op.divide(small, relax.op.where(plain, large, one)), zero)
    long = importer.emit(relax.op.multiply(large, relax.op.sqrt(relax.op.add(relax.op.square(ratio), one))))
    either = relax.op.logical_or(relax.op.equal(x, infinite), relax.op.equal(y, infinite))
    return importer.emit(relax.op.where(either, infinite, long))


def _extreme(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    """amax, amin; a scalar, which has an axis to torch, is its own."""
    x, axes = importer.arg(node, 0, "self"), list(importer.arg(node, 1, "dim", [])) or None
    return importer.emit(operator(x, axes, bool(importer.arg(node, 2, "keepdim", False)))) if dims(x) else x


def _place_of_extreme(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    """argmax, argmin; the place of a scalar is 0."""
    x, axis = importer.arg(node, 0, "self"), importer.arg(node, 1, "dim")
    if not dims(x):
        return relax.const(0, "int64")
    return importer.emit(operator(x, axis, bool(importer.arg(node, 2, "keepdim", False))))


#: Where torch takes a Python number as it is; elsewhere it rounds it to the dtype of the tensor.
_WITH_WIDE_NUMBERS = (relax.op.add, relax.op.subtract, relax.op.multiply, relax.op.divide)

_SIMPLE: dict[str, tuple[Callable[..., relax.Expr], str]] = {
    "add": (relax.op.add, "Tensor Scalar"),
    "sub": (relax.op.subtract, "Tensor Scalar"),
    "mul": (relax.op.multiply, "Tensor Scalar"),
    "div": (relax.op.divide, "Tensor Scalar"),
    "eq": (relax.op.equal, "Tensor Scalar"),
    "ne": (relax.op.not_equal, "Tensor Scalar"),
    "lt": (relax.op.less, "Tensor Scalar"),
    "le": (relax.op.less_equal, "Tensor Scalar"),
    "gt": (relax.op.greater, "Tensor Scalar"),
    "ge": (relax.op.greater_equal, "Tensor Scalar"),
    "maximum": (relax.op.maximum, "default"),
    "minimum": (relax.op.minimum, "default"),
    "atan2": (relax.op.atan2, "default"),
    "fmod": (relax.op.mod, "Tensor Scalar"),
    "logaddexp": (relax.op.log_add_exp, "default"),
    "remainder": (relax.op.floor_mod, "Tensor Scalar Scalar_Tensor"),
}

ARITHMETIC: dict[str, Callable[[Importer, fx.Node], Any]] = {
    **{
        f"{name}.{overload}": partial(_binary, operator=operator)
        for name, (operator, overloads) in _SIMPLE.items()
        for overload in overloads.split()
    },
    **{
        overload: partial(_bitwise, operator=operator, logical=logical)
        for name, operator, logical in (
            ("and", relax.op.bitwise_and, relax.op.logical_and),
            ("or", relax.op.bitwise_or, relax.op.logical_or),
            ("xor", relax.op.bitwise_xor, relax.op.logical_xor),
        )
        for overload in (
            *(f"bitwise_{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")),
            *(f"__{name}__.{kind}" for kind in ("Tensor", "Scalar")),  # in what torch splits others into
        )
    },
    "amax.default": partial(_extreme, operator=relax.op.max),
    "amin.default": partial(_extreme, operator=relax.op.min),
    "argmax.default": partial(_place_of_extreme, operator=relax.op.argmax),
    "argmin.default": partial(_place_of_extreme, operator=relax.op.argmin),
    **{
        f"{name}.{overload}": partial(_shift, left=left)
        for name, left, overloads in (
            ("__lshift__", True, "Tensor Scalar"),
            ("__rshift__", False, "Tensor Scalar"),
            ("bitwise_left_shift", True, "Tensor Tensor_Scalar Scalar_Tensor"),
            ("bitwise_right_shift", False, "Tensor Tensor_Scalar Scalar_Tensor"),
        )
        for overload in overloads.split()
    },
    "bitwise_not.default": _bitwise_not,
    "fmax.default": partial(_extreme_of_numbers, operator=relax.op.maximum, wins=relax.op.greater_equal),
    "fmin.default": partial(_extreme_of_numbers, operator=relax.op.minimum, wins=relax.op.less_equal),
    "hypot.default": _hypotenuse,
    "isfinite.default": _is_finite,
    "rsub.Scalar": _subtract_from,
    "logical_not.default": partial(_logical, operator=relax.op.logical_not),
    "logical_and.default": partial(_logical, operator=relax.op.logical_and),
    "logical_or.default": partial(_logical, operator=relax.op.logical_or),
    "logical_xor.default": partial(_logical, operator=relax.op.logical_xor),
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "div.Tensor_mode": _divide,
    **{f"pow.{overload}": _power for overload in ("Scalar", "Tensor_Scalar", "Tensor_Tensor")},
}
