"""What torch computes of sizes: other sizes, as Relax has them, and numbers that are none."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch.utils._sympy import functions as sympy_functions
from tvm import relax, tirx

from autocast.errors import ImportModelError

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy_functions.FloorDiv: tirx.floordiv,
    sympy_functions.Mod: tirx.floormod,
    sympy_functions.PythonMod: tirx.floormod,
    sympy_functions.Max: tirx.max,
    sympy_functions.Min: tirx.min,
}

#: What Python computes of sizes that is no size.
_OF_NUMBERS: dict[Any, Callable[..., relax.Expr]] = {
    torch.sym_float: lambda x: x,
    torch.sym_max: relax.op.maximum,
    torch.sym_min: relax.op.minimum,
    operator.add: relax.op.add,
    operator.sub: relax.op.subtract,
    operator.mul: relax.op.multiply,
    operator.truediv: relax.op.divide,
    operator.pow: relax.op.power,
    operator.neg: relax.op.negative,
}

#: What a fraction of sizes may have above and below, so that float64 computes no other size than whole numbers do.
_EXACT = 1 << 16


def size_of(expr: sympy.Expr, symbols: dict[str, tvm.ir.Expr]) -> tirx.PrimExpr:
    """A size that torch computes from symbols, as Relax does; symbols that are new are added to `symbols`."""
    if isinstance(expr, sympy.Symbol):
        return symbols.setdefault(str(expr), tirx.Var(str(expr), "int64"))
    if isinstance(expr, sympy.Integer):
        return tirx.IntImm("int64", int(expr))
    if isinstance(expr, sympy_functions.TruncToInt | sympy_functions.FloorToInt):
        return _scaled(expr, symbols)
    if isinstance(expr, sympy_functions.FloorDiv) and (exact := _quotient(*expr.args)) is not None:
        return size_of(exact, symbols)
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        return tvm.sym.Analyzer().simplify(math.prod([size_of(expr.base, symbols)] * int(expr.exp)))
    combine = _ARITHMETIC.get(type(expr))
    if combine is None:
        raise _unknown(expr)
    parts = [size_of(part, symbols) for part in expr.args]
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return tvm.sym.Analyzer().simplify(result)  # TVM's fusion takes `2 * n` for another size than its own `n * 2`


def _quotient(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr | None:
    """The polynomial of sizes that is the quotient of two, as n of n * n and n; None where it is not one."""
    exact = sympy.cancel(above / below)
    symbols = above.free_symbols
    if not symbols or not exact.is_polynomial(*symbols):
        return None
    return exact if all(number.is_Integer for number in sympy.Poly(exact, *symbols).coeffs()) else None


def _scaled(expr: sympy.Expr, symbols: dict[str, tvm.ir.Expr]) -> tirx.PrimExpr:
    """A size times a fraction that floating-point numbers hold (`scale_factor=1.5`), rounded down."""
    parts = list(expr.args[0].args) if isinstance(expr.args[0], sympy.Mul) else [expr.args[0]]
    sizes = [part.args[0] for part in parts if isinstance(part, sympy_functions.ToFloat)]
    numbers = [float(part) for part in parts if part.is_number]
    above, below = math.prod(numbers).as_integer_ratio()
    if len(sizes) != 1 or len(numbers) + 1 != len(parts) or above < 0 or max(above, below) > _EXACT:
        raise _unknown(expr)
    return tvm.sym.Analyzer().simplify(tirx.floordiv(size_of(sizes[0], symbols) * above, below))


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
    """What Python computes of sizes and is no whole number, of 0-d float64 tensors."""
    known = _OF_NUMBERS.get(operation)
    if known is None:
        raise ImportModelError("a number that is computed of sizes in a way that is not known here")
    return known(*values)
