"""Arithmetic and functions of one element. Where a derivative jumps, the choices are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from tvm import relax
from tvm.relax import op

from autocast.ir import number_of
from autocast.operators import own
from autocast.training.gradients.registry import Adjoint, Backward, GradientRule, gradient, zero_gradient
from autocast.training.gradients.shapes import number, unbroadcast


def slope(derivative: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> GradientRule:
    """The rule of a function of one element, from its derivative at (argument, result)."""
    return lambda b: [b.adjoint * derivative(b.call.args[0], b.result)]


def partials(*adjoints: Callable[[Backward, relax.Expr, relax.Expr], relax.Expr]) -> GradientRule:
    """The rule of an operator of two arguments that broadcast: for each, its adjoint from (backward, left, right)."""

    def rule(b: Backward) -> list[Adjoint]:
        left, right = b.call.args
        return [
            unbroadcast(b, adjoint(b, left, right), argument) if needed else None
            for adjoint, argument, needed in zip(adjoints, (left, right), b.needs, strict=True)
        ]

    return rule


def _square(x: relax.Expr) -> relax.Expr:
    return x * x


def _power_of_base(b: Backward, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    if number_of(exponent) == 2.0:
        return b.adjoint * (base * exponent)
    zero, one = number(0.0, b.result), number(1.0, b.result)
    derivative = exponent * op.power(base, exponent - one)
    return b.adjoint * op.where(op.equal(exponent, zero), zero, derivative)


def _power_of_exponent(b: Backward, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    zero = number(0.0, b.result)
    vanishes = op.logical_and(op.equal(base, zero), op.greater_equal(exponent, zero))
    return b.adjoint * op.where(vanishes, zero, b.result * op.log(base))


def _winner(loses: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> GradientRule:
    """The rule of a maximum or minimum: nothing where an argument loses, half of the adjoint in a tie, else all."""

    def adjoint(b: Backward, mine: relax.Expr, other: relax.Expr) -> relax.Expr:
        tied = op.where(op.equal(mine, other), b.adjoint * number(0.5, b.result), b.adjoint)
        return op.where(loses(mine, other), number(0.0, b.result), tied)

    return partials(adjoint, lambda b, x, y: adjoint(b, y, x))


def _clip(b: Backward) -> list[Adjoint]:
    """By the argument alone: the result may be stored in another precision, where nothing equals its argument."""
    x, low, high = b.call.args
    inside = [
        compare(x, number(float(bound.value), x))
        for compare, bound in ((op.greater_equal, low), (op.less_equal, high))
        if math.isfinite(float(bound.value))
    ]
    return [_where(b, *inside), None, None]


def _hardtanh(b: Backward) -> list[Adjoint]:
    x, (low, high) = b.call.args[0], (float(b.call.attrs[name]) for name in ("low", "high"))
    return [_where(b, op.greater(x, number(low, x)), op.less(x, number(high, x)))]


def _where(b: Backward, *conditions: relax.Expr) -> relax.Expr:
    """The adjoint where all conditions hold, else 0."""
    if not conditions:
        return b.adjoint
    return op.where(reduce(op.logical_and, conditions), b.adjoint, number(0.0, b.result))


def _fma(b: Backward) -> list[Adjoint]:
    x, y, _ = b.call.args
    return [b.adjoint * y, b.adjoint * x, b.adjoint]


def _gated_add(b: Backward) -> list[Adjoint]:
    gate, x, _ = b.call.args
    both = b.emit(own.gated_add_backward(gate, x, b.adjoint))
    return [relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1), b.adjoint]


def _outer(b: Backward) -> list[Adjoint]:
    x, y = b.call.args
    return [
        op.matmul(b.adjoint, y) if b.needs[0] else None,
        op.matmul(x, b.adjoint) if b.needs[1] else None,
    ]


def _modulo(quotient: Callable[[relax.Expr], relax.Expr]) -> GradientRule:
    return partials(lambda b, x, y: b.adjoint, lambda b, x, y: -(b.adjoint * quotient(op.divide(x, y))))


def _over_square(b: Backward, sign: float) -> relax.Expr:
    """The adjoint over 1 + sign x²."""
    x = b.call.args[0]
    return b.adjoint / (number(1, x) + number(sign, x) * _square(x))


def _over_squares(b: Backward, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """x / (x² + y²), 0 where both are 0."""
    squares, zero = b.emit(_square(x) + _square(y)), number(0.0, b.result)
    return op.where(op.equal(squares, zero), zero, x / squares)


ARITHMETIC = (
    gradient("relax.add", partials(lambda b, x, y: b.adjoint, lambda b, x, y: b.adjoint), why="1, 1"),
    gradient("relax.subtract", partials(lambda b, x, y: b.adjoint, lambda b, x, y: -b.adjoint), why="1, -1"),
    gradient("relax.multiply", partials(lambda b, x, y: b.adjoint * y, lambda b, x, y: b.adjoint * x), why="y, x"),
    gradient(
        "relax.divide",
        partials(lambda b, x, y: b.adjoint / y, lambda b, x, y: -(b.adjoint * b.result / y)),
        why="1 / y, -(x / y) / y",
    ),
    gradient("relax.ewise_fma", _fma, why="y, x, 1"),
    gradient("relax.nn.gated_add", _gated_add, why="x, gate, 1"),
    gradient("relax.outer", _outer, why="adjoint y, x adjoint"),
    gradient("relax.power", partials(_power_of_base, _power_of_exponent), why="y x^(y-1), x^y log x; 0 where y is 0"),
    gradient("relax.floor_mod", _modulo(op.floor), why="1, -floor(x / y)"),
    gradient("relax.mod", _modulo(op.trunc), why="1, -trunc(x / y)"),
    gradient("relax.maximum", _winner(op.less), why="1 where it wins, 1/2 in a tie"),
    gradient("relax.minimum", _winner(op.greater), why="1 where it wins, 1/2 in a tie"),
    gradient("relax.clip", _clip, why="1 between the bounds and on them"),
    gradient("relax.nn.hardtanh", _hardtanh, why="1 between the bounds, 0 on them, as in torch"),
    gradient("relax.negative", lambda b: [-b.adjoint], why="-1"),
    gradient("relax.abs", slope(lambda x, y: op.sign(x)), why="sign(x), 0 at 0"),
)

_STEPS = "constant between its jumps"
JUMPS = (
    zero_gradient("relax.sign", why=_STEPS),
    zero_gradient("relax.ceil", why=_STEPS),
    zero_gradient("relax.floor", why=_STEPS),
    zero_gradient("relax.round", why=_STEPS),
    zero_gradient("relax.trunc", why=_STEPS),
    zero_gradient("relax.floor_divide", why=_STEPS),
)

TRANSCENDENTAL = (
    gradient("relax.sigmoid", lambda b: [own.sigmoid_backward(b.result, b.adjoint)], why="y (1 - y)"),
    gradient("relax.tanh", lambda b: [own.tanh_backward(b.result, b.adjoint)], why="1 - y²"),
    gradient("relax.exp", slope(lambda x, y: y), why="y"),
    gradient("relax.nn.expm1", slope(lambda x, y: op.exp(x)), why="exp(x): y + 1 has lost the digits of a small one"),
    gradient("relax.nn.log1p", lambda b: [b.adjoint / (number(1, b.result) + b.call.args[0])], why="1 / (1 + x)"),
    gradient("relax.log", lambda b: [b.adjoint / b.call.args[0]], why="1 / x"),
    gradient(
        "relax.log_add_exp",
        partials(
            lambda b, x, y: b.adjoint * op.exp(x - b.result),
            lambda b, x, y: b.adjoint * op.exp(y - b.result),
        ),
        why="the share of each: exp(x - result), exp(y - result)",
    ),
    gradient("relax.square", slope(lambda x, y: x * number(2, x)), why="2 x"),
    gradient("relax.sqrt", lambda b: [b.adjoint * number(0.5, b.result) / b.result], why="1 / (2 y)"),
    gradient("relax.rsqrt", slope(lambda x, y: number(-0.5, y) * (y * _square(y))), why="-y³ / 2"),
    gradient(
        "relax.erf",
        slope(lambda x, y: number(2 / math.sqrt(math.pi), x) * op.exp(-_square(x))),
        why="2 / sqrt(pi) exp(-x²)",
    ),
    gradient("relax.sin", slope(lambda x, y: op.cos(x)), why="cos x"),
    gradient("relax.cos", slope(lambda x, y: -op.sin(x)), why="-sin x"),
    gradient("relax.tan", slope(lambda x, y: number(1, y) + _square(y)), why="1 + y²"),
    gradient("relax.sinh", slope(lambda x, y: op.cosh(x)), why="cosh x"),
    gradient("relax.cosh", slope(lambda x, y: op.sinh(x)), why="sinh x"),
    gradient("relax.asin", slope(lambda x, y: op.rsqrt(number(1, x) - _square(x))), why="1 / sqrt(1 - x²)"),
    gradient("relax.acos", slope(lambda x, y: -op.rsqrt(number(1, x) - _square(x))), why="-1 / sqrt(1 - x²)"),
    gradient("relax.atan", lambda b: [_over_square(b, 1.0)], why="1 / (1 + x²)"),
    gradient(
        "relax.atan2",
        partials(
            lambda b, x, y: b.adjoint * _over_squares(b, y, x),
            lambda b, x, y: -(b.adjoint * _over_squares(b, x, y)),
        ),
        why="y / (x² + y²), -x / (x² + y²); 0 at the origin",
    ),
    gradient("relax.asinh", slope(lambda x, y: op.rsqrt(_square(x) + number(1, x))), why="1 / sqrt(x² + 1)"),
    gradient("relax.acosh", slope(lambda x, y: op.rsqrt(_square(x) - number(1, x))), why="1 / sqrt(x² - 1)"),
    gradient("relax.atanh", lambda b: [_over_square(b, -1.0)], why="1 / (1 - x²)"),
)


RULES = (*ARITHMETIC, *JUMPS, *TRANSCENDENTAL)
