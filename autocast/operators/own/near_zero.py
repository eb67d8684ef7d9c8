"""log(1 + x) and e^x - 1, which keep the digits of small numbers that adding to 1, or subtracting it, would take."""

from __future__ import annotations

from tvm import relax

from autocast.operators.operator import Expansion, define, like

op = relax.op


def _log1p(e: Expansion) -> relax.Expr:
    """With u, which is 1 + x rounded: log(u) x / (u - 1), where both factors have lost the same digits.

    Source: William Kahan, in the handbook of Hewlett-Packard's calculator HP-15C, 1982.
    """
    (x,) = e.operands
    one = e.number(1.0)
    rounded = e.emit(one + x)
    kept = e.emit(rounded - one)
    near = op.log(rounded) * (x / op.where(op.equal(kept, e.number(0.0)), one, kept))
    near = op.where(op.equal(kept, e.number(0.0)), x, near)
    return op.where(op.less(op.abs(x), one), near, op.log(rounded))


def _expm1(e: Expansion) -> relax.Expr:
    """With u, which is e^x rounded: (u - 1) x / log(u), the same for the inverse."""
    (x,) = e.operands
    one, zero = e.number(1.0), e.number(0.0)
    power = e.emit(op.exp(x))
    grown = e.emit(power - one)
    exponent = e.emit(op.log(power))
    near = op.where(op.equal(exponent, zero), x, grown * (x / op.where(op.equal(exponent, zero), one, exponent)))
    return op.where(op.less(op.abs(x), one), near, grown)


log1p = define("relax.nn.log1p", "x", result=like(0), expand=_log1p, summary="log(1 + x), also where x is small")
expm1 = define("relax.nn.expm1", "x", result=like(0), expand=_expm1, summary="exp(x) - 1, also where x is small")
