"""What torch computes of sizes: other sizes, as Relax has them, and numbers that are none."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch.utils._sympy import functions as sympy_functions
from tvm import relax, tirx

from autocast.errors import ImportModelError

_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy_functions.FloorDiv: tirx.floordiv,
    sympy_functions.Mod: tirx.floormod,
    sympy_functions.PythonMod: tirx.floormod,
    sympy_functions.Max: tirx.max,
    sympy_functions.Min: tirx.min,
    sympy_functions.BitwiseFn_bitwise_and: tirx.bitwise_and,
    sympy_functions.BitwiseFn_bitwise_or: tirx.bitwise_or,
    sympy.Abs: lambda size: tirx.max(size, -size),
}

#: What Python computes of sizes and numbers, by numbers.
_OF_NUMBERS: dict[Any, Callable[..., relax.Expr]] = {
    torch.sym_float: lambda x: x,
    torch.sym_max: relax.op.maximum,
    torch.sym_min: relax.op.minimum,
    torch.sym_sqrt: relax.op.sqrt,
    math.ceil: relax.op.ceil,
    math.floor: relax.op.floor,
    math.trunc: relax.op.trunc,
    round: relax.op.round,
    **dict.fromkeys((abs, operator.abs), relax.op.abs),
    operator.add: relax.op.add,
    operator.sub: relax.op.subtract,
    operator.mul: relax.op.multiply,
    operator.truediv: relax.op.divide,
    operator.mod: relax.op.floor_mod,
    operator.pow: relax.op.power,
    operator.neg: relax.op.negative,
}

#: The largest denominator of a fraction that a floating-point number is taken for, and of how many sizes it is tried.
_DENOMINATOR, _TRIED = 4096, 1 << 20


def size_of(expr: sympy.Expr, symbols: dict[str, tvm.ir.Expr]) -> tirx.PrimExpr:
    """A size that torch computes from symbols, as Relax does; symbols that are new are added to `symbols`, which may
    have sizes that are computed of others, too, by their text."""
    if (known := symbols.get(str(expr))) is not None:
        return known
    if isinstance(expr, sympy.Symbol):
        return symbols.setdefault(str(expr), tirx.Var(str(expr), "int64"))
    if isinstance(expr, sympy.Integer):
        return tirx.IntImm("int64", int(expr))
    if isinstance(expr, sympy_functions.TruncToInt | sympy_functions.FloorToInt | sympy_functions.CeilToInt):
        return _rounded(expr, symbols)
    if isinstance(expr, sympy_functions.FloorDiv) and (exact := _quotient(*expr.args)) is not None:
        return size_of(exact, symbols)
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        return tvm.sym.Analyzer().simplify(math.prod([size_of(expr.base, symbols)] * int(expr.exp)))
    combine = _ARITHMETIC.get(type(expr))
    if combine is None:
        raise _unknown(expr)
    parts = [size_of(part, symbols) for part in expr.args]
    result = functools.reduce(combine, parts) if len(parts) > 1 else combine(*parts)
    return tvm.sym.Analyzer().simplify(result)  # TVM's fusion takes `2 * n` for another size than its own `n * 2`


def _quotient(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr | None:
    """The polynomial of sizes that is the quotient of two, as n of n * n and n; None where it is not one."""
    exact = sympy.cancel(above / below)
    symbols = above.free_symbols
    if not symbols or not exact.is_polynomial(*symbols):
        return None
    return exact if all(number.is_Integer for number in sympy.Poly(exact, *symbols).coeffs()) else None


class _Scaled(NamedTuple):
    """A size times a number: exactly, and as floating-point numbers compute it of an array of sizes."""

    size: sympy.Expr
    factor: Fraction
    computed: Callable[[np.ndarray], np.ndarray]


def _rounded(expr: sympy.Expr, symbols: dict[str, tvm.ir.Expr]) -> tirx.PrimExpr:
    """A size times a number, rounded (`scale_factor=1.5`, `math.ceil(n / 2)`), computed in whole numbers.

    That this is what floating-point numbers come to is tried for all sizes up to a million.
    """
    scaled = _scaled_size(expr.args[0])
    if scaled is None or scaled.factor < 0:
        raise _unknown(expr)
    if isinstance(expr, sympy_functions.TruncToInt) and not scaled.size.is_nonnegative:
        raise _unknown(expr)  # which is rounded up where it is negative
    above, below = scaled.factor.as_integer_ratio()
    upwards = isinstance(expr, sympy_functions.CeilToInt)
    more = below - 1 if upwards else 0
    tried = np.arange(_TRIED, dtype=np.int64)
    in_floats = (np.ceil if upwards else np.floor)(scaled.computed(tried))
    if not np.array_equal(in_floats, (tried * above + more) // below):
        raise _unknown(expr)
    return tvm.sym.Analyzer().simplify(tirx.floordiv(size_of(scaled.size, symbols) * above + more, below))


def _scaled_size(expr: sympy.Expr) -> _Scaled | None:
    """What of an expression is a size, and what a number."""
    if isinstance(expr, sympy_functions.ToFloat):
        return _Scaled(expr.args[0], Fraction(1), lambda sizes: sizes.astype(np.float64))
    if isinstance(expr, sympy_functions.IntTrueDiv) and expr.args[1].is_Integer:
        by = int(expr.args[1])
        return _Scaled(expr.args[0], Fraction(1, by), lambda sizes: sizes / by)
    if isinstance(expr, sympy_functions.FloatTrueDiv) and expr.args[1].is_number:
        number, inner = float(expr.args[1]), _scaled_size(expr.args[0])
        return None if inner is None else _then(inner, lambda x: x / number, 1 / _simple(number))
    if isinstance(expr, sympy.Mul) and len(expr.args) == 2 and expr.args[0].is_number:
        number, inner = float(expr.args[0]), _scaled_size(expr.args[1])
        return None if inner is None else _then(inner, lambda x: number * x, _simple(number))
    return None


def _then(inner: _Scaled, function: Callable[[np.ndarray], np.ndarray], factor: Fraction) -> _Scaled:
    return _Scaled(inner.size, inner.factor * factor, lambda sizes: function(inner.computed(sizes)))


def _simple(number: float) -> Fraction:
    """The fraction that somebody who writes a number means: 7/10 of 0.7."""
    return Fraction(number).limit_denominator(_DENOMINATOR)


def _unknown(expr: sympy.Expr) -> ImportModelError:
    """The error for a size that is computed in a way that is not known here."""
    numbers = [symbol for symbol in expr.free_symbols if not symbol.is_integer]
    if numbers:
        return ImportModelError(
            f"from_torch: a size is computed from a floating-point number that values decide ({expr}); expected one of "
            "whole numbers. Try to make it whole first, as in torch.arange(x.max().ceil().long())"
        )
    return ImportModelError(
        f"from_torch: the dimension {expr} is computed with {type(expr).__name__}; expected sums, products, quotients, "
        "remainders, the larger and the smaller of sizes. Try to write it with these"
    )


def number_of(operation: Any, values: Sequence[relax.Expr]) -> relax.Expr:
    """What Python computes of numbers that are 0-d float64 tensors."""
    known = _OF_NUMBERS.get(operation)
    if known is None or (operation is round and len(values) > 1):
        raise ImportModelError(
            f"a number is computed of sizes by {getattr(operation, '__name__', operation)} of {len(values)} numbers; "
            f"expected one of {', '.join(sorted({known.__name__ for known in _OF_NUMBERS}))}. Try to compute it of a "
            "tensor, torch.tensor(x.shape[0])"
        )
    return known(*values)
