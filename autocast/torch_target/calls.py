"""A graph as a list of calls, one after the other: less is around each than in `torch.fx.Interpreter`."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx


class _Call(NamedTuple):
    """A function, the places of its arguments and of its result, and those that nothing reads after it."""

    function: Callable[..., Any]
    arguments: list[int]
    keywords: list[tuple[str, int]]
    result: int
    dead: list[int]


#: What is called by the kinds of nodes that call.
_FUNCTIONS: dict[str, Callable[[Any, torch.nn.Module], Callable[..., Any]]] = {
    "call_function": lambda target, root: target,
    "call_method": lambda target, root: getattr(torch.Tensor, target),
    "call_module": lambda target, root: root.get_submodule(target),
}


class Calls:
    """Runs a graph's functions in their order, on what is in numbered places: inputs, constants, results.

    Parameters
    ----------
    root : torch.nn.Module
        Holds what the graph reads, the same tensors in all calls.
    graph : torch.fx.Graph
    """

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        self._places: dict[fx.Node, int] = {}
        #: What is in the places before a call.
        self._before: list[Any] = []
        self._calls: list[_Call] = []
        self._inputs: list[int] = []
        dead = _dead_after(graph)
        for node in graph.nodes:
            if node.op == "output":
                self._result = self._argument(node.args[0])
                continue
            self._places[node] = result = self._place()
            if node.op == "placeholder":
                self._inputs.append(result)
            elif node.op == "get_attr":
                self._before[result] = operator.attrgetter(node.target)(root)
            else:
                function = _FUNCTIONS[node.op](node.target, root)
                arguments = list(map(self._argument, node.args))
                keywords = [(name, self._argument(value)) for name, value in node.kwargs.items()]
                places = [self._places[one] for one in dead[node]]
                self._calls.append(_Call(function, arguments, keywords, result, places))

    def _place(self, value: Any = None) -> int:
        self._before.append(value)
        return len(self._before) - 1

    def _argument(self, value: Any) -> int:
        """The place of an argument, which a call makes before if it has results of others in it."""
        if isinstance(value, fx.Node):
            return self._places[value]
        found: list[fx.Node] = []
        fx.map_arg(value, found.append)
        if not found:
            return self._place(value)
        parts = [value.start, value.stop, value.step] if isinstance(value, slice) else list(value)
        make = slice if isinstance(value, slice) else lambda *parts: type(value)(parts)
        arguments = list(map(self._argument, parts))
        place = self._place()
        self._calls.append(_Call(make, arguments, [], place, []))
        return place

    def __call__(self, *inputs: torch.Tensor) -> Any:
        values = self._before.copy()
        for place, value in zip(self._inputs, inputs, strict=True):
            values[place] = value
        for function, arguments, keywords, result, dead in self._calls:
            given = [values[place] for place in arguments]
            if keywords:
                values[result] = function(*given, **{name: values[place] for name, place in keywords})
            else:
                values[result] = function(*given)
            for place in dead:
                values[place] = None
        return values[self._result]


def _dead_after(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By call the results, and inputs, that nothing reads after it."""
    dead: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "get_attr" and (last := max(node.users, key=order.__getitem__, default=node)).op != "output":
            dead[last].append(node)
    return dead
