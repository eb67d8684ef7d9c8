"""Sizes that vary, in graphs of torch: their bounds, and how they are computed of one another."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

_library = torch.library.Library("autocast", "FRAGMENT")
_library.define("of_sizes(Tensor x, SymInt[] sizes) -> Tensor")
_library.impl("of_sizes", lambda x, sizes: x.clone(), "CompositeExplicitAutograd")

#: A tensor, whose sizes are these, too: torch, which is told an equation of sizes, may solve it for any of them.
OF_SIZES = torch.ops.autocast.of_sizes.default

torch.library.register_fake("autocast::of_sizes", lambda x, sizes: x.new_empty(sizes), lib=_library)


def bounds_of(size: torch.SymInt) -> tuple[int | None, ...]:
    """The least and the largest value of a size, None where there is none."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    upper = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper < 2**31 else None
    lower = int(bounds.lower) if bounds.lower.is_Integer else 1
    return max(lower, 1), upper


def interpreted(size: Any, known: Mapping[str, Any]) -> Any:
    """A size that is computed of others, which are known by name: numbers, or what torch traces."""
    return sympy_interp(PythonReferenceAnalysis, {s: known[str(s)] for s in size.free_symbols}, size)


def follows(value: Any, known: Container[str]) -> bool:
    """Whether a value is a size that is computed of known ones, by whole numbers alone: torch traces no others."""
    if not isinstance(value, torch.SymInt) or value.node.expr.is_symbol:
        return False
    whole = all(part.is_integer for part in sympy.preorder_traversal(value.node.expr))
    return whole and all(str(symbol) in known for symbol in value.node.expr.free_symbols)
