"""Special functions, computed in float64: what rounding the stored operand would do to the result."""

from __future__ import annotations

from type_hints.helpers import follow, full, untouched
from type_hints.registry import rule

_TAIL = "a tail falls as exp(-x²): x's absolute rounding becomes relative, 2 x² times as large"
_ENDS = "unbounded slope at both ends of its domain, where rounding can leave it"
_POLES = "unbounded slope at its poles, and zeros beside which rounding is all of the result"
_GROWS = "grows as exp: float16 overflows for |x| > 11.09, and x's absolute rounding becomes relative"
_WAVES = "an argument of 300 is rounded by up to 1 in bfloat16: a third of half a wave"

RULES = (
    rule("relax.special.erfc", full(1), why=_TAIL),
    rule("relax.special.erfcx", full(1), why="grows as exp(x²) below zero, where float16 overflows at -3.2"),
    rule("relax.special.erfinv", full(1), why=_ENDS),
    rule("relax.special.log_ndtr", full(1), why="falls as -x²: float16 overflows at -362, and above zero a tail"),
    rule("relax.special.ndtri", full(1), why=_ENDS),
    rule("relax.special.lgamma", full(1), why=_POLES),
    rule("relax.special.digamma", full(1), why=_POLES),
    rule("relax.special.polygamma", full(1), why=_POLES),
    rule("relax.special.zeta", full(2), why=_POLES),
    rule("relax.special.i0", full(1), why=_GROWS),
    rule("relax.special.i1", full(1), why=_GROWS),
    rule("relax.special.i0e", follow(1), why="falls slowly: rounding the stored input is never amplified"),
    rule("relax.special.i1e", follow(1), why="falls slowly: rounding the stored input is never amplified"),
    rule("relax.special.bessel_j0", full(1), why=_WAVES),
    rule("relax.special.bessel_j1", full(1), why=_WAVES),
    rule("relax.special.bessel_y0", full(1), why=_WAVES),
    rule("relax.special.bessel_y1", full(1), why=_WAVES),
    rule("relax.special.frexp", full(1), why="jumps: a rounded operand can have another exponent"),
    rule("relax.special.signbit", follow(1), why="rounding keeps the sign"),
    rule("relax.special.nextafter", untouched(), why="the next number is one of the dtype that its author chose"),
)
