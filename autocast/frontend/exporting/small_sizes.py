"""Where a program is another for a size of 1 or 0: torch.export takes every size that varies for a larger one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from autocast.frontend.exporting.checks import call_nodes, call_place
from autocast.frontend.exporting.conditions import sizes_of
from autocast.frontend.nodes import results_read


def other_program(program: ExportedProgram, sizes: Mapping[str, int], symbol: str) -> str:
    """If a tensor has other sizes, where the symbols have these, than those that torch computes of them: which.

    Such as `x.squeeze(1)`, `x[1:-1]` or `x.repeat(2)[:3]` where there is one. Each operator of whose operands' sizes
    the `symbol` is a part (the other symbols have usual sizes) is asked for its result by itself, without numbers; what
    raises an error for these sizes does so in the module, too.
    """
    given = _Given(sizes)
    nodes = (node for node in call_nodes(program) if _vary(node.all_input_nodes, symbol))
    return next(filter(None, map(given.other, nodes)), "")


def _vary(nodes: Collection[fx.Node], symbol: str) -> bool:
    """Whether any of the nodes' sizes vary with a symbol."""
    values = pytree.tree_leaves([node.meta.get("val") for node in nodes])
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else [value])]
    return any(symbol in map(str, size.node.expr.free_symbols) for size in sizes if isinstance(size, torch.SymInt))


class _Given:
    """The values of a program, without their numbers, for some sizes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._known: dict[Any, int] = {}

    def other(self, node: fx.Node) -> str:
        """What an operator's result is, if that is not what torch says of all sizes; else empty."""
        try:
            args, kwargs = pytree.tree_map(self._argument, (node.args, node.kwargs))
            if "device" in kwargs:
                kwargs["device"] = "meta"
            declared = [tuple(map(self._concrete, shape)) for shape in _shapes(node, node.meta["val"])]
            shapes = [tuple(shape) for shape in _shapes(node, node.target(*args, **kwargs))]
        except Exception:  # torch refuses these sizes, or cannot say without the numbers
            return ""
        if shapes == declared:
            return ""
        got, expected = (", ".join(map(str, each)) for each in (shapes, declared))
        return f"{node.target} in {call_place(node)} gives {got}, not {expected}"

    def _argument(self, value: Any) -> Any:
        return pytree.tree_map(self._concrete, value.meta["val"]) if isinstance(value, fx.Node) else value

    def _concrete(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            expression = value.node.expr
            if expression not in self._known:
                (self._known[expression],) = sizes_of([value], self._sizes)
            return self._known[expression]
        if isinstance(value, torch.Tensor):
            shape, strides = (tuple(map(self._concrete, sizes)) for sizes in (value.shape, value.stride()))
            return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        return value


def _shapes(node: fx.Node, value: Any) -> list[torch.Size]:
    """Those of a node's result; of several, those that are read: others may have any."""
    read = results_read(node)
    values = [one for i, one in enumerate(value) if i in read] if read else [value]
    return [leaf.shape for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
