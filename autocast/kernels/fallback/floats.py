"""Floating-point numbers as they are everywhere else: TVM takes them for numbers that are exact, finite and not NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, te, tirx

from autocast.ir import dtype_of, is_constant, is_op, number_of, op_name, shape_of
from autocast.ir.rewriting import BindingRewriter

op = relax.op

FLOATS = ("float64", "float32", "float16")


def arithmetic(rewriter: BindingRewriter, call: relax.Call, *operands: relax.Expr) -> relax.Expr | None:
    """Numbers plus, by and over 0: TVM takes -0 plus 0 for -0, 0 times anything, and over anything, for 0, NaN
    included, and refuses to write what is over 0. Such a 0 becomes a tensor of one element, which it does not look
    into. Floored ones are Python's."""
    floored = _FLOORED.get(op_name(call) or "")
    has_zero = 0.0 in map(number_of, operands)
    if dtype_of(call) not in FLOATS or not (floored or has_zero):
        return None
    if has_zero:
        rank = max(call.ty.ndim, 1)
        operands = tuple(
            _of_rank(rewriter, operand, rank) if shape_of(operand) == () else operand for operand in operands
        )
    result = floored(rewriter.emit, *operands) if floored else relax.Call(call.op, list(operands), call.attrs)
    return op.reshape(rewriter.emit(result), []) if has_zero and call.ty.ndim == 0 else result


def _difference(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr | None:
    """Floating-point numbers plus what is opposite: TVM takes x - x for 0, and (x + y) - x for y."""
    if dtype_of(call) not in FLOATS or 0.0 in (number_of(x), number_of(y)):
        return arithmetic(rewriter, call, x, y)
    x, y = (_rounded(rewriter, new, old) for new, old in zip((x, y), call.args, strict=True))
    return op.add(x, rewriter.emit(op.negative(y)))


def _sum(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr | None:
    """Two products are rounded before, as `matching.translate` does it."""
    if dtype_of(call) not in FLOATS or not all(_is_product(rewriter, operand) for operand in call.args):
        return arithmetic(rewriter, call, x, y)
    return op.add(*(_rounded(rewriter, new, old) for new, old in zip((x, y), call.args, strict=True)))


def _is_product(rewriter: BindingRewriter, operand: relax.Expr) -> bool:
    return is_op(rewriter.values.get(operand), "relax.multiply", "relax.square")


def _rounded(rewriter: BindingRewriter, new: relax.Expr, old: relax.Expr) -> relax.Expr:
    """An operand that is added or subtracted: what is a product, by itself."""
    return rewriter.emit(rewriter.builder_.call_te(_unfused, new)) if _is_product(rewriter, old) else new


def _unfused(x: te.Tensor) -> te.Tensor:
    """Numbers with which the processor does not fuse what follows."""
    return te.compute(x.shape, lambda *at: tirx.call_llvm_pure_intrin(x.dtype, "llvm.arithmetic.fence", x(*at)))


def _of_rank(rewriter: BindingRewriter, scalar: relax.Expr, rank: int) -> relax.Expr:
    if is_constant(scalar):
        return relax.const(scalar.value.numpy().reshape([1] * rank), dtype_of(scalar))
    return rewriter.emit(op.reshape(scalar, [1] * rank))


_Emit = Callable[[relax.Expr], relax.Expr]


def _floor_mod(emit: _Emit, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The exact rest, with the sign of the divisor: TVM's own subtracts a rounded quotient's multiple."""
    rest, has_other_sign = _rest(emit, x, y)
    return op.where(has_other_sign, emit(op.add(rest, y)), rest)


def _floor_divide(emit: _Emit, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """How often `y` goes into `x` less the rest, a whole number but for rounding; by 0 the quotient."""
    rest, has_other_sign = _rest(emit, x, y)
    quotient = emit(op.divide(emit(op.subtract(x, rest)), y))
    less = emit(op.subtract(quotient, relax.const(1, dtype_of(x))))
    quotient = emit(op.round(emit(op.where(has_other_sign, less, quotient))))
    return op.where(emit(op.equal(y, relax.const(0, dtype_of(y)))), emit(op.divide(x, y)), quotient)


def _rest(emit: _Emit, x: relax.Expr, y: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """What a truncating division leaves, and whether its sign is not that of the divisor."""
    zero, rest = relax.const(0, dtype_of(x)), emit(op.mod(x, y))
    below = emit(op.logical_and(emit(op.less(rest, zero)), emit(op.greater(y, zero))))
    above = emit(op.logical_and(emit(op.greater(rest, zero)), emit(op.less(y, zero))))
    return rest, emit(op.logical_or(below, above))


_FLOORED: dict[str, Callable[[_Emit, relax.Expr, relax.Expr], relax.Expr]] = {
    "relax.floor_mod": _floor_mod,
    "relax.floor_divide": _floor_divide,
}


def passing_nan(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr, *others: relax.Expr) -> relax.Expr | None:
    """maximum, minimum, relu: TVM chooses by a comparison, which is false for a NaN that comes first."""
    if dtype_of(x) not in FLOATS:
        return None
    result = rewriter.emit(relax.Call(call.op, [x, *others], call.attrs))
    return op.where(rewriter.emit(op.isnan(x)), x, result)


def _log_add_exp(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The larger one, and what the smaller adds: TVM adds exponentials, of which those above 710 are infinite."""
    emit = rewriter.emit
    distance = emit(op.abs(emit(op.subtract(x, y))))
    is_equal = emit(op.equal(x, y))  # infinities are, and have no distance
    added = emit(op.where(is_equal, relax.const(np.log(2), dtype_of(call)), _added(emit, distance)))
    return op.add(emit(op.where(emit(op.isnan(x)), x, emit(op.maximum(x, y)))), added)


def _softplus(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr) -> relax.Expr:
    """`log(1 + exp(beta x)) / beta`, x above the threshold: TVM adds 1 to what may be less than its last place."""
    emit, dtype = rewriter.emit, dtype_of(call)
    beta = relax.const(float(call.attrs.beta), dtype)
    scaled = emit(op.multiply(x, beta))
    positive = emit(op.where(emit(op.greater(scaled, relax.const(0, dtype))), scaled, relax.const(0, dtype)))
    soft = emit(op.divide(emit(op.add(positive, _added(emit, emit(op.abs(scaled))))), beta))
    plain = emit(op.greater(scaled, relax.const(float(call.attrs.threshold), dtype)))
    return op.where(emit(op.logical_or(plain, emit(op.isnan(x)))), x, soft)


def _added(emit: _Emit, distance: relax.Expr) -> relax.Expr:
    """`log(1 + exp(-distance))`, with all digits: see `operators.own.near_zero`."""
    one = relax.const(1, dtype_of(distance))
    power = emit(op.exp(emit(op.negative(distance))))
    total = emit(op.add(power, one))
    kept = emit(op.add(total, relax.const(-1, dtype_of(distance))))  # TVM knows what a difference would leave
    lost = emit(op.equal(kept, relax.const(0, dtype_of(distance))))
    quotient = emit(op.divide(power, emit(op.where(lost, one, kept))))
    return emit(op.where(lost, power, emit(op.multiply(emit(op.log(total)), quotient))))


def _comparison(rewriter: BindingRewriter, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr | None:
    """`x != x` asks for NaN; TVM's simplifier takes it for false, and `x == x` for true. NaN is unlike all others, too:
    TVM has the processor ask for what is less or more."""
    if dtype_of(x) not in FLOATS:
        return None
    if x.same_as(y):
        is_nan = op.isnan(x)
        return is_nan if op_name(call) == "relax.not_equal" else op.logical_not(rewriter.emit(is_nan))
    if op_name(call) != "relax.not_equal":
        return None
    is_equal = rewriter.emit(op.astype(rewriter.emit(op.equal(x, y)), "uint8"))
    return op.astype(rewriter.emit(op.bitwise_xor(is_equal, relax.const(1, "uint8"))), "bool")


#: By operator; of dtypes that are none of these, they change nothing.
RULES: dict[str, Callable[..., relax.Expr | None]] = {
    "relax.add": _sum,
    "relax.subtract": _difference,
    "relax.multiply": arithmetic,
    "relax.log_add_exp": _log_add_exp,
    "relax.nn.softplus": _softplus,
    **{f"relax.{name}": passing_nan for name in ("maximum", "minimum", "nn.relu")},
    **{f"relax.{name}": _comparison for name in ("equal", "not_equal", "less_equal", "greater_equal")},
}
