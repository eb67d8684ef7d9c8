"""Branches and loops that are decided when a model runs: `If`, and `Loop` as a function that calls itself.

    def loop(level, step, goes_on, states..., captured...):     # takes up to 2 ** level steps
        if goes_on:
            if level == 0:
                r = (step + 1, body's condition, body's states...)
            else:
                half = loop(level - 1, step, goes_on, states..., captured...)
                r = loop(level - 1, half..., captured...)
        else:
            r = (step, goes_on, states...)
        return r

A function that called itself once for each step would need as many frames on the stack as there are steps; this one
needs LEVELS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import onnx
import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.functions import graphs_of
from autocast.ir import dtype_of, shape_of, with_new_variables

op = relax.op

#: Two to the power of this is the largest number of steps.
LEVELS = 48


class Importer(Protocol):
    """What translates the nodes of a graph to `bb`, and knows the values of names."""

    bb: relax.BlockBuilder
    _nodes: dict[str, Any]

    def _construct_nodes(self, graph: onnx.GraphProto) -> None: ...


def branches(importer: Importer, node: onnx.NodeProto) -> None:
    """The results of an `If`."""
    graphs = {one.name: one.g for one in node.attribute}
    condition = _scalar(importer, importer._nodes[node.input[0]])
    then, other = (
        _sequence(importer, lambda graph=graph: _results(importer, graph))  # type: ignore[misc]
        for graph in (graphs["then_branch"], graphs["else_branch"])
    )
    types = [[_described(field) for field in one.body.ty.fields] for one in (then, other)]
    if types[0] != types[1]:
        raise UnsupportedError(
            f"its branches return {', '.join(types[0])} and {', '.join(types[1])}; expected the same dtypes and sizes. "
            "Export the model for the branch that is taken, whose condition is then a constant"
        )
    whole = importer.bb.emit(relax.If(condition, then, other))
    for at, name in enumerate(node.output):
        importer._nodes[name] = importer.bb.emit(relax.TupleGetItem(whole, at))


def loop(importer: Importer, node: onnx.NodeProto, name: str) -> None:
    """The last states of a `Loop` whose number of steps is known when it runs."""
    body = next(one.g for one in node.attribute if one.name == "body")
    bb, nodes = importer.bb, importer._nodes
    if any(node.output[len(node.input) - 2 :]):
        raise UnsupportedError(
            "it returns a row for each step, of which there are as many as the model decides when it runs; expected a "
            "constant trip count, and a condition that is always true"
        )
    trips, goes_on, *states = ((nodes[one] if one else None) for one in node.input)
    count = None if trips is None else _scalar(importer, trips)
    start = relax.const(0, "int64")
    first = relax.const(True) if goes_on is None else _scalar(importer, goes_on)
    if count is not None:
        first = bb.emit(op.logical_and(first, op.less(start, count)))
    given = [relax.const(LEVELS, "int64"), start, first, *map(bb.emit, states)]
    captured = {one: nodes[one] for one in _captured(body) if isinstance(nodes.get(one), relax.Var)}
    outer = [*captured.values(), *([] if count is None else [count])]
    function = _Function(importer, name, body, given, [*captured], outer)
    result = bb.emit(relax.Call(function.make(), [*given, *outer]))
    for at, out in enumerate(node.output):
        nodes[out] = bb.emit(relax.TupleGetItem(result, 2 + at))


class _Function:
    """The function of a loop."""

    def __init__(
        self,
        importer: Importer,
        name: str,
        body: onnx.GraphProto,
        given: list[relax.Expr],
        captured: list[str],
        outer: list[relax.Expr],
    ) -> None:
        self.importer, self.name, self.body, self.captured = importer, name, body, captured
        names = ["level", "step", "goes_on", *(f"state_{at}" for at in range(len(given) - 3))]
        self.states = [relax.Var(one, value.ty) for one, value in zip(names, given, strict=True)]
        self.outer = [relax.Var(f"outer_{at}", value.ty) for at, value in enumerate(outer)]
        self.result = tvm.ir.TupleType([var.ty for var in self.states[1:]])

    def make(self) -> tvm.ir.GlobalVar:
        """Add it to the module."""
        bb, params = self.importer.bb, [*self.states, *self.outer]
        unknown = relax.Function(params, relax.SeqExpr([], relax.Tuple(self.states[1:])), self.result)
        self.var = bb.add_func(with_new_variables(unknown), self.name)
        bb.begin_scope(params)
        goes_on = self.states[2]
        done = _sequence(self.importer, lambda: relax.Tuple(self.states[1:]))
        seq = _sequence(self.importer, lambda: relax.If(goes_on, _sequence(self.importer, self._goes_on), done))
        function = relax.Function(params, bb.normalize(seq), self.result)
        bb.end_scope()
        bb.update_func(self.var, with_new_variables(function))
        return self.var

    def _goes_on(self) -> relax.Expr:
        bb, level = self.importer.bb, self.states[0]
        one = _sequence(self.importer, self._step)
        two = _sequence(self.importer, self._twice)
        is_last = bb.emit(op.equal(level, relax.const(0, "int64")))
        return relax.If(is_last, one, two)

    def _twice(self) -> relax.Expr:
        bb, level = self.importer.bb, self.states[0]
        below = bb.emit(op.subtract(level, relax.const(1, "int64")))
        half = bb.emit(relax.Call(self.var, [below, *self.states[1:], *self.outer]))
        parts = [bb.emit(relax.TupleGetItem(half, at)) for at in range(len(self.states) - 1)]
        return relax.Call(self.var, [below, *parts, *self.outer])

    def _step(self) -> relax.Expr:
        importer, bb = self.importer, self.importer.bb
        _, step, goes_on, *states = self.states
        inner = [value.name for value in self.body.input]
        values = dict(zip(inner, [step, goes_on, *states], strict=True))
        values |= dict(zip(self.captured, self.outer, strict=False))
        goes, *results = _results(importer, self.body, values).fields
        types = [[_described(part.ty) for part in parts] for parts in (states, results)]
        if types[0] != types[1]:
            raise UnsupportedError(
                f"its states are {', '.join(types[0])} before a step and {', '.join(types[1])} after it; expected the "
                "same dtypes and sizes, unless the trip count is a constant"
            )
        after = bb.emit(op.add(step, relax.const(1, "int64")))
        goes = _scalar(importer, goes)
        if len(self.outer) > len(self.captured):
            goes = bb.emit(op.logical_and(goes, op.less(after, self.outer[-1])))
        return relax.Tuple([after, goes, *results])


def _results(importer: Importer, graph: onnx.GraphProto, values: dict[str, relax.Expr] | None = None) -> relax.Tuple:
    """The outputs of a graph, of which nobody outside knows the other values."""
    outer = dict(importer._nodes)
    importer._nodes.update(values or {})
    importer._construct_nodes(graph)
    results = [importer.bb.emit(_tensor(importer._nodes[one.name])) for one in graph.output]
    importer._nodes.clear()
    importer._nodes.update(outer)
    return relax.Tuple(results)


def _tensor(value: relax.Expr) -> relax.Expr:
    return op.shape_to_tensor(value) if isinstance(value.ty, relax.ShapeType) else value


def _sequence(importer: Importer, make: Callable[[], relax.Expr]) -> relax.SeqExpr:
    """What is emitted to make an expression, and a variable for it."""
    bb = importer.bb
    bb._begin_binding_block()
    try:
        result = bb.emit(make())
    finally:
        block = bb._end_block()
    return relax.SeqExpr([block], result)


def _scalar(importer: Importer, value: relax.Expr) -> relax.Expr:
    """A tensor of one element, without axes."""
    return value if shape_of(value) == () else importer.bb.emit(op.reshape(value, []))


def _described(type: tvm.ir.Type) -> str:
    var = relax.Var("x", type)
    sizes = shape_of(var)
    if sizes is None:
        raise UnsupportedError(f"a branch or a step returns {type}, whose sizes depend on values; expected fixed ones")
    return f"{dtype_of(var)}[{', '.join(map(str, sizes))}]"


def _captured(body: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph, or one in it, reads; also those that it defines itself."""
    names = (name for graph in graphs_of(body) for node in graph.node for name in node.input)
    results = (value.name for graph in graphs_of(body) for value in graph.output)
    return iter(dict.fromkeys([*names, *results]))
