"""Arithmetic of what an ONNX graph computes of sizes: whole numbers, expressions in names of dimensions, and ratios."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from autocast.ir import identity

#: No axis is as long: ends from here on mean the end, whatever the size is.
BEYOND = 10**9

#: Fractions of more parts may make products with sizes that float32 does not have exactly.
FINEST = 256


@dataclass(frozen=True)
class Ratio:
    """A floating-point number that is one size over another, exactly."""

    top: Any
    bottom: Any

    def floor(self) -> Any:
        return _quotient(self.top, self.bottom)

    def ceil(self) -> Any:
        return _quotient(self.top + self.bottom - 1, self.bottom)


def exact(array: np.ndarray) -> np.ndarray | None:
    """Floating-point numbers as ratios; None for one whose product with a size float32 may have to round."""
    if not np.isfinite(array).all() or (array < 0).any():
        return None
    fractions = [Fraction(float(one)) for one in array.reshape(-1)]
    found = np.empty(len(fractions), object)
    for at, fraction in enumerate(fractions):
        if fraction.denominator > FINEST:
            return None
        found[at] = _ratio(fraction.numerator, fraction.denominator)
    return found.reshape(array.shape)


def parts(value: Any) -> tuple[Any, Any]:
    return (value.top, value.bottom) if isinstance(value, Ratio) else (value, 1)


def _ratio(top: Any, bottom: Any) -> Any:
    """A whole number where that is known to be one."""
    if isinstance(top, int) and isinstance(bottom, int) and bottom:
        fraction = Fraction(top, bottom)
        top, bottom = fraction.numerator, fraction.denominator
    return top if isinstance(bottom, int) and bottom == 1 else Ratio(top, bottom)


def _times(a: Any, b: Any) -> Any:
    (a_top, a_bottom), (b_top, b_bottom) = parts(a), parts(b)
    analyzer = tvm.sym.Analyzer()
    if not isinstance(a_bottom, int) and analyzer.can_prove_equal(a_bottom, b_top):
        return _ratio(a_top, b_bottom)
    if not isinstance(b_bottom, int) and analyzer.can_prove_equal(b_bottom, a_top):
        return _ratio(b_top, a_bottom)
    return _ratio(simple(a_top * b_top), simple(a_bottom * b_bottom))


def _over(a: Any, b: Any) -> Any:
    top, bottom = parts(b)
    return None if isinstance(top, int) and top == 0 else _times(a, Ratio(bottom, top))


def _quotient(a: Any, b: Any) -> Any:
    """Rounded to 0, as ONNX divides; None for what may be negative, which is rounded down here."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else a // b if (a < 0) == (b < 0) else -(-a // b)
    return _divided(tirx.floordiv, a, b, lambda multiple: multiple) if is_size(a) else None


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else None
    return _divided(tirx.floormod, a, b, lambda multiple: 0)


def _divided(divide: Callable[[Any, Any], Any], a: Any, b: Any, of_multiple: Callable[[int], int]) -> Any:
    """A quotient or a remainder by a size; one of 0 divides as 1 does, since nothing else may come of it."""
    if isinstance(b, int):
        return simple(divide(a, b)) if b > 0 else None
    multiple = _multiple(a, b)
    if multiple is not None:
        return of_multiple(multiple)
    return simple(divide(a, tirx.max(b, 1))) if is_size(b) else None


def _multiple(a: Any, b: Any) -> int | None:
    """How many times an expression another is, if that is one number whatever the dimensions are."""
    names = {name for one in (a, b) if isinstance(one, tvm.ir.Expr) for name in tirx.analysis.undefined_vars(one)}
    ordered = sorted(names, key=lambda name: name.name)
    numbers = {identity(name): tirx.IntImm(name.ty.dtype, 97 + 31 * at) for at, name in enumerate(ordered)}
    analyzer = tvm.sym.Analyzer()

    def sampled(size: Any) -> Any:
        known = tvm_ffi.structural_map(size, (tirx.Var, lambda name: numbers[identity(name)]))
        return simple(known)

    top, bottom = (one if isinstance(one, int) else sampled(one) for one in (a, b))
    if not isinstance(top, int) or not isinstance(bottom, int) or bottom == 0 or top % bottom:
        return None
    return top // bottom if analyzer.can_prove_equal(a, b * (top // bottom)) else None


def is_size(value: Any) -> bool:
    """Whether a number or an expression is never negative."""
    return value >= 0 if isinstance(value, int) else bool(of_sizes([value]).can_prove(value >= 0))


def _chosen(of_numbers: Callable[[Any, Any], Any], of_sizes: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: of_numbers(a, b) if isinstance(a, int) and isinstance(b, int) else simple(of_sizes(a, b))


def _equal(a: Any, b: Any) -> bool | None:
    """Whether two sizes are the same whatever the dimensions are; None if that depends."""
    if isinstance(a, int | bool) and isinstance(b, int | bool):
        return a == b
    analyzer = tvm.sym.Analyzer()
    if analyzer.can_prove_equal(a, b):
        return True
    numbers, others = ([one for one in (a, b) if isinstance(one, int) is kind] for kind in (True, False))
    return False if numbers and numbers[0] < 0 and is_size(others[0]) else None


def simple(value: Any) -> Any:
    """An expression as TVM simplifies it, with the factors of a product by name: what is equal is written alike."""
    value = tvm.sym.Analyzer().simplify(value) if isinstance(value, tvm.ir.Expr) else value
    if isinstance(value, tirx.IntImm):
        return int(value)
    return functools.reduce(operator.mul, sorted(_factors(value), key=_order)) if isinstance(value, tirx.Mul) else value


def _factors(value: Any) -> list[Any]:
    return [*_factors(value.a), *_factors(value.b)] if isinstance(value, tirx.Mul) else [value]


def _order(factor: Any) -> tuple[bool, str]:
    """Numbers come last."""
    return isinstance(factor, tirx.IntImm), str(factor)


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool | None]:
    """Whether a comparison of sizes holds whatever the dimensions are; None if that depends."""

    def compared(a: Any, b: Any) -> bool | None:
        if isinstance(a, int) and isinstance(b, int):
            return bool(compare(a, b))
        analyzer = of_sizes([a, b])
        holds = compare(a, b)
        return True if analyzer.can_prove(holds) else False if analyzer.can_prove(tirx.Not(holds)) else None

    return compared


def of_sizes(*values: Any) -> tvm.sym.Analyzer:
    """What knows that the dimensions in expressions are not negative."""
    analyzer = tvm.sym.Analyzer()
    expressions = [one for group in values for one in group if isinstance(one, tvm.ir.Expr)]
    for var in {var for one in expressions for var in tirx.analysis.undefined_vars(one)}:
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", 0), tirx.IntImm("int64", BEYOND)))
    return analyzer


#: Operators whose results are bools.
LOGICAL = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"))

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": _chosen(operator.add, operator.add),
    "And": lambda a, b: False if a is False or b is False else None if a is None or b is None else a and b,
    "Div": _quotient,
    "Equal": _equal,
    "Greater": _compared(operator.gt),
    "GreaterOrEqual": _compared(operator.ge),
    "Less": _compared(operator.lt),
    "LessOrEqual": _compared(operator.le),
    "Max": _chosen(max, tirx.max),
    "Min": _chosen(min, tirx.min),
    "Mod": _remainder,
    "Mul": _chosen(operator.mul, operator.mul),
    "Neg": lambda a: -a if isinstance(a, int) else simple(0 - a),
    "Not": lambda a: None if a is None else not a,
    "Or": lambda a, b: True if a is True or b is True else None if a is None or b is None else a or b,
    "Sub": _chosen(operator.sub, operator.sub),
    "Where": lambda condition, a, b: None if condition is None else a if condition else b,
}


def _of_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: None if any(isinstance(one, Ratio) for one in given) else function(*given)


#: The same of floating-point numbers, which are ratios of sizes.
OF_FLOATS: dict[str, Callable[..., Any]] = {
    **{name: _of_whole(ELEMENTWISE[name]) for name in ("Add", "Max", "Min", "Neg", "Sub", "Where")},
    **{name: _of_whole(ELEMENTWISE[name]) for name in LOGICAL - {"And", "Not", "Or"}},
    "Ceil": lambda a: a.ceil() if isinstance(a, Ratio) else a,
    "Div": _over,
    "Floor": lambda a: a.floor() if isinstance(a, Ratio) else a,
    "Mul": _times,
}
