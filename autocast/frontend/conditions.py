"""Conditions on sizes: what torch.export found to hold as it traced a module that decides by sizes, or computes them.

    L['x'].size()[0] % 2 != 1

An imported model has the branch that was traced, so a size for which a condition does not hold is another program.
torch proves the conditions of dimensions that have bounds, where it can; here they are tried, size by size.
"""

from __future__ import annotations

import ast
import inspect
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
from torch.utils import _pytree as pytree

#: So many combinations of sizes are tried; of a dimension that has no upper bound so many sizes.
COMBINATIONS, _SIZES = 20_000, 1024


class _Sized:
    """What a condition asks of a dense tensor, whose symbolic sizes are now these and now others."""

    def __init__(self, declared: Sequence[int | torch.SymInt]) -> None:
        self.declared = tuple(declared)
        self.shape: tuple[int, ...] = ()

    def size(self) -> tuple[int, ...]:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(max(size, 1) for size in self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def storage_offset(self) -> int:
        return 0


def counterexample(
    program: torch.export.ExportedProgram,
    module: torch.nn.Module,
    example: tuple[Sequence[Any], Mapping[str, Any]],
    symbols: Mapping[str, str],
    asked: Mapping[str, tuple[int | None, int | None]],
) -> str | None:
    """Sizes for which the module is another program, and why, in words; None where none was found.

    Parameters
    ----------
    program, module, example
        What was exported, of what, with which inputs.
    symbols
        The names of its symbolic sizes.
    asked
        By name the least and the largest size that there may be; None: what torch inferred.
    """
    ranges = {}
    for symbol, name in symbols.items():
        known = next((values for key, values in program.range_constraints.items() if str(key) == symbol), None)
        low = 2 if known is None else max(int(known.lower), 2)  # the program of 2 is taken for that of 1
        high = None if known is None or not known.upper.is_Integer else int(known.upper)
        least, largest = asked.get(name, (None, None))
        if max(least or low, 2) < low or (largest is not None and high is not None and high < largest):
            return f"torch exports it for {name} from {low} to {high}"
        ranges[name] = (max(least or low, 2), high if largest is None else largest)
    found = [text.strip() for text in getattr(program, "_guards_code", [])]
    conditions = [(text, compile(text, "<condition>", "eval")) for text in found if not _is_of_one(text)]
    inputs = [
        node.meta["val"]
        for node, spec in zip(
            program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True
        )
        if spec.kind.name == "USER_INPUT"
    ]
    sized = [_Sized(meta.shape) if isinstance(meta, torch.Tensor) else None for meta in inputs]
    scope = {**SYMPY_INTERP, "math": math, "inf": math.inf, "L": _named(module, example, sized)}
    for sizes in combinations(ranges) if conditions else ():
        values = {symbol: sizes[name] for symbol, name in symbols.items()}
        for one in filter(None, sized):
            one.shape = sizes_of(one.declared, values)
        for text, code in conditions:
            if not eval(code, scope):  # torch wrote it, and calls it in the same way
                shown = ", ".join(f"{name} = {size}" for name, size in sizes.items())
                return f"for {shown} this does not hold: {text}"
    return None


def _is_of_one(text: str) -> bool:
    """Whether a condition is that a size is not 1, which torch says by itself: the program is taken for that of 1.

    It says so in other words, too, where it asks how a map lies in memory, say: `a > 1`, `a * b != a`, `a < a * b`,
    `a % (a * b) != 0`. What the code of a module decides by that is looked into elsewhere (decisions.py).
    """
    condition = ast.parse(text, mode="eval").body
    if not isinstance(condition, ast.Compare):
        return False
    left, right = condition.left, condition.comparators[0]
    if isinstance(condition.ops[0], ast.NotEq) and isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        return ast.unparse(right) == "0" and _factors(left.left) <= _factors(left.right)
    if "%" in text:
        return False
    upwards = isinstance(condition.ops[0], ast.Lt | ast.NotEq) and _factors(left) <= _factors(right)
    return upwards or (isinstance(condition.ops[0], ast.Gt | ast.NotEq) and _factors(right) <= _factors(left))


def _factors(size: ast.expr) -> Counter[str]:
    """What is multiplied in an expression, as text."""
    if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult):
        return _factors(size.left) + _factors(size.right)
    return Counter() if isinstance(size, ast.Constant) and size.value == 1 else Counter([ast.unparse(size)])


def combinations(ranges: Mapping[str, tuple[int, int | None]]) -> Iterator[dict[str, int]]:
    """Sizes by name within bounds: all, or, where these are too many, each dimension's beside the least others, and
    some drawn."""
    sizes = [range(low, (low + _SIZES if high is None else high) + 1) for low, high in ranges.values()]
    if math.prod(map(len, sizes)) <= COMBINATIONS:
        yield from (dict(zip(ranges, row, strict=True)) for row in product(*sizes))
        return
    least = [values[0] for values in sizes]
    for at, values in enumerate(sizes):
        yield from (dict(zip(ranges, [*least[:at], size, *least[at + 1 :]], strict=True)) for size in values[:_SIZES])
    drawn = random.Random(0)
    for _ in range(_SIZES):
        yield {name: drawn.choice(values) for name, values in zip(ranges, sizes, strict=True)}


def _named(
    module: torch.nn.Module, example: tuple[Sequence[Any], Mapping[str, Any]], sized: Sequence[_Sized | None]
) -> dict[str, Any]:
    """The inputs by the names of `forward`, which conditions read."""
    leaves, spec = pytree.tree_flatten((tuple(example[0]), dict(example[1])))
    args, kwargs = pytree.tree_unflatten([one or leaf for one, leaf in zip(sized, leaves, strict=True)], spec)
    return inspect.signature(module.forward).bind(*args, **kwargs).arguments


def sizes_of(declared: Sequence[int | torch.SymInt], values: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of a tensor for values of the symbols that are in them."""
    return tuple(size if isinstance(size, int) else _value(size, values) for size in declared)


def _value(size: torch.SymInt, values: Mapping[str, int]) -> int:
    expr = size.node.expr
    return values[str(expr)] if expr.is_Symbol else int(expr.subs({s: values[str(s)] for s in expr.free_symbols}))
