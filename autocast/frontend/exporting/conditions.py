"""Conditions on sizes: what torch.export found to hold as it traced a module that decides by sizes, or computes them.

    n % 2 != 1

An imported model has the branch that was traced, so a size for which a condition does not hold is another program.
torch proves the conditions of dimensions that have bounds, where it can; here they are tried, size by size.
"""

from __future__ import annotations

import ast
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from autocast.frontend.exporting.columns import Columns, NotInColumns, computed

#: Where a module keeps what holds of all sizes that it is called with: `Assumed`.
ASSUMED = "_autocast_assumed"

#: So many combinations of the sizes that a condition is on are tried; of a dimension without an upper bound so many.
COMBINATIONS, _SIZES = 1_000_000, 1024

#: (end of a file's name, what is in the names of functions) of torch in which it asks how tensors lie in memory, which
#: changes no number: those of few elements lie in all ways.
_OF_MEMORY = (
    ("_prims_common/__init__.py", ("contiguous", "strides", "channels_last", "overlapping")),
    ("_refs/__init__.py", ("_reshape_view_helper",)),
    ("_subclasses/fake_tensor.py", ("cache",)),  # whether its memory holds a view
)


#: What conditions are written in, beside sizes.
_KNOWN = {**SYMPY_INTERP, "math": math, "inf": math.inf}


def can_all_be_tried(program: torch.export.ExportedProgram) -> bool:
    """Whether the sizes that a condition is on have few enough combinations; without a largest, the first are tried."""
    bounds = bounds_of(program)

    def count(condition: Condition) -> int:
        known = [bounds[symbol] for symbol in condition.symbols if symbol in bounds]
        return math.prod(high - low + 1 for low, high in known if high is not None)

    return all(count(condition) <= COMBINATIONS for condition in conditions_of(program))


class Condition:
    """A condition of sympy on sizes, or another size, by torch's symbols, which are in `symbols`."""

    def __init__(self, expr: Any) -> None:
        self.symbols = {str(symbol) for symbol in expr.free_symbols}
        self._expr = expr
        text = PythonPrinter().doprint(expr)
        self._code, self._parsed = compile(text, "<condition>", "eval"), ast.parse(text, mode="eval").body

    def hold(self, columns: Columns) -> np.ndarray:
        """For which rows of sizes it does; not for those where it divides by one that is 0."""
        return self.evaluated(columns, otherwise=False).astype(bool)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it does for these sizes."""
        return bool(self.hold({name: np.array([value]) for name, value in values.items()})[0])

    def evaluated(self, columns: Columns, otherwise: Any = None) -> np.ndarray:
        """What it is for each row of sizes; `otherwise` where it divides by one that is 0."""
        read = {name: columns[name] for name in self.symbols}
        try:
            return np.broadcast_to(computed(self._parsed, read), max(map(len, read.values()), default=1))
        except NotInColumns:
            rows = zip(*(sizes.tolist() for sizes in read.values()), strict=True) if read else [()]
            return np.array([self._of(dict(zip(read, row, strict=True)), otherwise) for row in rows])

    def _of(self, values: Mapping[str, int], otherwise: Any) -> Any:
        try:
            return eval(self._code, _KNOWN, values)
        except ZeroDivisionError:
            return otherwise

    def named(self, symbols: Mapping[str, str]) -> str:
        """It as text, with the names of symbols."""
        symbol = type(next(iter(self._expr.free_symbols)))
        return PythonPrinter().doprint(
            self._expr.xreplace({s: symbol(symbols[str(s)]) for s in self._expr.free_symbols})
        )


class Assumed(NamedTuple):
    """What holds of all sizes that may come: conditions, and of sizes that are computed of others how, by their names.

    A module keeps it in its attribute `ASSUMED`.
    """

    conditions: Sequence[Condition] = ()
    derived: Mapping[str, Condition] = {}

    def combinations(self, names: Collection[str], ranges: Mapping[str, tuple[int, int | None]]) -> Columns:
        """Columns of sizes within their ranges that may come, by name: these, and what they depend on."""
        wanted = set(names).union(*(self.derived[name].symbols for name in names if name in self.derived))
        also = [one for one in self.conditions if one.symbols & wanted and one.symbols <= ranges.keys()]
        wanted.update(*(one.symbols for one in also))
        derived = {n: self.derived[n] for n in wanted & self.derived.keys() if self.derived[n].symbols <= ranges.keys()}
        free = (wanted - derived.keys()).union(*(one.symbols for one in derived.values()))
        columns = combinations({name: ranges[name] for name in ranges if name in free})
        comes = [one.hold(columns) for one in also if not one.symbols & derived.keys()]
        for name, one in derived.items():
            columns[name] = one.evaluated(columns, otherwise=-1)
            least, most = ranges[name]
            comes += [columns[name] >= least, *([] if most is None else [columns[name] <= most])]
        comes += [one.hold(columns) for one in also if one.symbols & derived.keys()]
        return {name: sizes[np.logical_and.reduce(comes)] for name, sizes in columns.items()} if comes else columns


def conditions_of(program: torch.export.ExportedProgram) -> list[Condition]:
    """What was found to hold of the sizes of a program, but for what changes no number."""
    env = _environment(program)
    return [] if env is None else [Condition(expr) for expr in guarded(env)]


def guarded(env: ShapeEnv) -> list[Any]:
    """What torch found to hold of sizes, as expressions, but for what changes no number."""
    places = [(guard.expr, guard.sloc.framework_loc) for guard in env.guards if guard.expr.free_symbols]
    # Of what it does not know the frame of, torch has text or nothing.
    found = [expr for expr, at in places if not _is_compared(getattr(at, "filename", ""), getattr(at, "name", ""))]
    exprs = [_reduced(expr) for expr in found]
    return [expr for expr in exprs if not _is_of_few(PythonPrinter().doprint(expr))]


def _reduced(expr: Any) -> Any:
    """An equation without the sizes by which both sides are multiplied: `b*n == 2*b*(n//2)` is `n == 2*(n//2)`."""
    if not isinstance(expr, sympy.Eq | sympy.Ne):
        return expr
    left, right = (sympy.Mul.make_args(side) for side in expr.args)
    common = {factor for factor in left if factor.is_Symbol}.intersection(right)
    sides = [sympy.Mul(*(factor for factor in side if factor not in common)) for side in (left, right)]
    return expr.func(*sides) if common else expr


def _is_compared(file: str, function: str) -> bool:
    """Whether torch asks in a place how a tensor lies in memory, or in C++, which is mostly that: what is decided there
    is compared for sizes for which it falls otherwise (decisions.py)."""
    return is_of_memory(file, function) or file.endswith("torch/_ops.py")


def _environment(program: torch.export.ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.find_nodes(op="placeholder"):
        meta = node.meta.get("val")
        for size in meta.shape if isinstance(meta, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def is_of_memory(file: str, function: str) -> bool:
    """Whether torch asks in this place how a tensor lies in memory."""
    return any(file.endswith(end) and any(name in function for name in names) for end, names in _OF_MEMORY)


def _is_of_few(text: str) -> bool:
    """Whether a condition is that a size is not 1, or not 0, which torch says by itself: the program is taken for that
    of 1 and 0.

    It says so in other words, too, where it asks how a map lies in memory, say: `a > 1`, `a * b != a`, `a < a * b`,
    `a % (a * b) != 0`. What is decided by that is looked into elsewhere (decisions.py).
    """
    condition = ast.parse(text, mode="eval").body
    if not isinstance(condition, ast.Compare):
        return False
    left, right = condition.left, condition.comparators[0]
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        multiple = isinstance(condition.ops[0], ast.NotEq) and ast.unparse(right) == "0"
        return multiple and _factors(left.left) <= _factors(left.right)
    if isinstance(condition.ops[0], ast.NotEq) and "0" in (ast.unparse(left), ast.unparse(right)):
        return True
    upwards = isinstance(condition.ops[0], ast.Lt | ast.NotEq) and _factors(left) <= _factors(right)
    return upwards or (isinstance(condition.ops[0], ast.Gt | ast.NotEq) and _factors(right) <= _factors(left))


def _factors(size: ast.expr) -> Counter[str]:
    """What is multiplied in an expression, as text."""
    if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult):
        return _factors(size.left) + _factors(size.right)
    return Counter() if isinstance(size, ast.Constant) and size.value == 1 else Counter([ast.unparse(size)])


def combinations(ranges: Mapping[str, tuple[int, int | None]]) -> dict[str, np.ndarray]:
    """Columns of sizes within bounds, by name: all, or, where these are too many, some of each dimension's beside the
    least others, those nearest to its least one first, and some drawn."""
    sizes = [range(low, (low + _SIZES if high is None else high) + 1) for low, high in ranges.values()]
    if math.prod(map(len, sizes)) <= COMBINATIONS:
        rows = [grid.reshape(-1) for grid in np.meshgrid(*sizes, indexing="ij")]
        return dict(zip(ranges, rows, strict=True))
    least = [values[0] for values in sizes]
    found = [[*least[:at], size, *least[at + 1 :]] for at, one in enumerate(sizes) for size in _ever_farther(one)]
    drawn = random.Random(0)
    found += [[drawn.choice(values) for values in sizes] for _ in range(_SIZES)]
    return dict(zip(ranges, np.array(found).T, strict=True))


def _ever_farther(sizes: range) -> Iterator[int]:
    """Sizes from the least one on, then each a quarter larger than the one before, and the largest."""
    yield from sizes[:_SIZES]
    place = _SIZES
    while place < len(sizes):
        yield sizes[place]
        place += place // 4
    if len(sizes) > _SIZES:
        yield sizes[-1]


def never_negative(size: Any, program: torch.export.ExportedProgram) -> bool:
    """Whether a number, or a node that computes one of sizes, is 0 or more, for all of the sizes that are tried."""
    size = size.meta["val"] if isinstance(size, fx.Node) else size
    if isinstance(size, int):
        return size >= 0
    known, condition = bounds_of(program), Condition(size.node.expr)
    if not condition.symbols <= known.keys():
        return False  # values decide
    ranges = {symbol: known[symbol] for symbol in condition.symbols}
    return bool((condition.evaluated(combinations(ranges), otherwise=-1) >= 0).all())


def bounds_of(program: torch.export.ExportedProgram) -> dict[str, tuple[int, int | None]]:
    """By torch's symbol the least and the largest size that it allows; None: it knows no largest."""
    ranges = {str(symbol): values for symbol, values in program.range_constraints.items() if values.lower.is_Integer}
    return {s: (int(b.lower), int(b.upper) if b.upper.is_Integer else None) for s, b in ranges.items()}


def is_other(condition: Condition, held: bool, program: torch.export.ExportedProgram) -> bool:
    """Whether a condition that held, or did not, does otherwise for sizes of 2 or more that the program allows."""
    known = bounds_of(program)
    if not condition.symbols <= known.keys():
        return False  # values decide
    ranges = {symbol: (max(known[symbol][0], 2), known[symbol][1]) for symbol in condition.symbols}
    return bool((condition.hold(combinations(ranges)) != held).any())


def sizes_of(declared: Sequence[int | torch.SymInt], values: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of a tensor for values of the symbols that are in them."""
    return tuple(size if isinstance(size, int) else _value(size, values) for size in declared)


def _value(size: torch.SymInt, values: Mapping[str, int]) -> int:
    """A size; the example's where it is computed of others than these."""
    expr = size.node.expr
    if not all(str(symbol) in values for symbol in expr.free_symbols):
        return int(size.node.hint)
    return values[str(expr)] if expr.is_Symbol else int(expr.subs({s: values[str(s)] for s in expr.free_symbols}))
