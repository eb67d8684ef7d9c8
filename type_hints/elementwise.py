"""Arithmetic and functions of one element: what rounding the stored operands does to the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from type_hints.helpers import follow, full
from type_hints.hints import Argument, Hint
from type_hints.registry import rule

_Constant = type(relax.const(1.0))
_FULL, _FOLLOW = full(2), follow(2)


class _Divide:
    """Division: by a literal it is a scaling and follows; by anything else it is float32.

    It looks at an expression, so it must not be a `TableRule`.
    """

    __slots__ = ()
    label = "full"
    which = frozenset((0, 1))

    def __repr__(self) -> str:
        return "full(2), or follow(2) by a literal"

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        chosen = _FOLLOW if isinstance(args[1].expr, _Constant) else _FULL
        return chosen(args, ret_type, amp_dtype)


_ONE_ROUNDING = "one rounding of the result, as small as that of the operands; the dtypes must agree"
_JUMPS = "jumps: a rounded operand can change the result by a whole unit"
_BOUNDED = "bounded slope: rounding the stored input is never amplified, and the kernel computes in float32"

ARITHMETIC = (
    rule("relax.add", follow(2), why=_ONE_ROUNDING),
    rule("relax.bias_add", follow(2, leader=0), why="an add of a bias: takes the precision its data already has"),
    rule("relax.subtract", follow(2), why=_ONE_ROUNDING),
    rule("relax.multiply", follow(2), why=_ONE_ROUNDING),
    rule("relax.ewise_fma", follow(3), why=_ONE_ROUNDING),
    rule("relax.nn.gated_add", full(3), why="the state of a recurrent cell: rounded at every step, it would drift"),
    rule("relax.outer", follow(2), why="products without a sum: one rounding each; the dtypes must agree"),
    rule(
        "relax.divide",
        _Divide(),
        why="float16 overflows for small divisors, and a small divisor amplifies its rounding; "
        "division by a literal is a scaling and follows",
    ),
    rule("relax.floor_divide", full(2), why=_JUMPS),
    rule("relax.floor_mod", full(2), why=_JUMPS),
    rule("relax.mod", full(2), why=_JUMPS),
    rule("relax.maximum", follow(2), why="gives back one of its operands; the dtypes must agree"),
    rule("relax.minimum", follow(2), why="gives back one of its operands; the dtypes must agree"),
    rule("relax.clip", follow(1), why="gives back its operand or a bound"),
    rule("relax.negative", follow(1), why="exact: changes the sign bit only"),
    rule("relax.abs", follow(1), why="exact: changes the sign bit only"),
    rule("relax.sign", follow(1), why="rounding keeps the sign"),
    rule("relax.ceil", full(1), why=_JUMPS),
    rule("relax.floor", full(1), why=_JUMPS),
    rule("relax.round", full(1), why=_JUMPS),
    rule("relax.trunc", full(1), why=_JUMPS),
)

ACTIVATIONS = (
    rule("relax.nn.relu", follow(1), why="gives back its operand or zero"),
    rule("relax.nn.hardtanh", follow(1), why="gives back its operand or a bound"),
    rule("relax.nn.leakyrelu", follow(1), why="scales by one of two constants: one rounding"),
    rule("relax.nn.prelu", full(2), why="TVM refuses it in bfloat16"),
    rule("relax.nn.gelu", follow(1), why=f"{_BOUNDED} (slope at most 1.13)"),
    rule("relax.nn.gelu_tanh", follow(1), why=f"{_BOUNDED} (slope at most 1.13)"),
    rule("relax.nn.silu", follow(1), why=f"{_BOUNDED} (slope at most 1.10)"),
    rule("relax.nn.selu", follow(1), why=f"{_BOUNDED} (slope at most 1.76)"),
    rule("relax.nn.softplus", follow(1), why=f"{_BOUNDED} (slope at most 1)"),
    rule("relax.sigmoid", follow(1), why=f"{_BOUNDED} (slope at most 0.25)"),
    rule("relax.tanh", follow(1), why=f"{_BOUNDED} (slope at most 1)"),
    rule("relax.nn.dropout", follow(1), why="zeroes elements and scales the others by one constant"),
    rule("relax.nn.seeded_dropout", follow(1), why="zeroes elements and scales the others by one constant"),
)

TRANSCENDENTAL = (
    rule("relax.exp", full(1), why="float16 overflows for x > 11.09, and x's absolute rounding becomes relative"),
    rule("relax.log", full(1), why="float16 makes probabilities below 3e-8 zero, whose logarithm is -inf"),
    rule("relax.nn.expm1", full(1), why="grows as exp: float16 overflows for x > 11.09"),
    rule("relax.nn.log1p", full(1), why="unbounded slope at -1, where rounding can leave the domain"),
    rule("relax.log_add_exp", full(2), why="the logarithm of a sum of exponentials: has the dangers of both"),
    rule("relax.power", full(2), why="float16 overflows, and the exponent multiplies the base's rounding"),
    rule("relax.square", full(1), why="float16 overflows for |x| >= 256 and makes |x| < 1.7e-4 zero"),
    rule("relax.sqrt", full(1), why="a variance below 3e-8 is zero in float16, and the slope at zero is infinite"),
    rule("relax.rsqrt", full(1), why="a variance plus an epsilon of 1e-12 is zero in float16: 1/sqrt(0) is inf"),
    rule("relax.erf", full(1), why="1 + erf(x) cancels for negative x, which leaves erf's rounding as the result"),
    rule("relax.sin", full(1), why="an angle of 300 is rounded by up to 1 in bfloat16: a third of a half turn"),
    rule("relax.cos", full(1), why="an angle of 300 is rounded by up to 1 in bfloat16: a third of a half turn"),
    rule("relax.tan", full(1), why="as sin, and unbounded slope at its poles"),
    rule("relax.sinh", full(1), why="grows as exp: float16 overflows for |x| > 11.78"),
    rule("relax.cosh", full(1), why="grows as exp: float16 overflows for |x| > 11.78"),
    rule("relax.asin", full(1), why="unbounded slope at -1 and 1; rounding can leave the domain"),
    rule("relax.acos", full(1), why="unbounded slope at -1 and 1; rounding can leave the domain"),
    rule("relax.atan", follow(1), why=f"{_BOUNDED} (slope at most 1)"),
    rule(
        "relax.atan2",
        follow(2),
        why="rounding both coordinates turns the angle by no more than their relative rounding",
    ),
    rule("relax.asinh", follow(1), why=f"{_BOUNDED} (slope at most 1)"),
    rule("relax.acosh", full(1), why="unbounded slope at 1; rounding can leave the domain"),
    rule("relax.atanh", full(1), why="unbounded slope at -1 and 1; rounding can leave the domain"),
)

RULES = (*ARITHMETIC, *ACTIVATIONS, *TRANSCENDENTAL)
