"""Branches and loops that are decided when a model runs: `If` and `Loop`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import onnx
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from autocast.errors import UnsupportedError
from autocast.frontend.importing.loops import called, fields_of, looped, sequence
from autocast.frontend.onnx.expressions import parts
from autocast.frontend.onnx.functions import graphs_of
from autocast.frontend.onnx.loops import goes_on_always
from autocast.frontend.onnx.sizes import Sizes
from autocast.ir import dtype_of, is_constant, lacks_dtype, shape_of

op = relax.op


class Importer(Protocol):
    """What translates the nodes of a graph to `bb`, and knows the values of names."""

    bb: relax.BlockBuilder
    _nodes: dict[str, Any]
    _sizes: Sizes

    def _construct_nodes(self, graph: onnx.GraphProto) -> None: ...

    def _with_sizes(self, name: str, value: relax.Expr, known: Mapping[int, Any]) -> relax.Expr: ...


def branches(importer: Importer, node: onnx.NodeProto) -> None:
    """The results of an `If`, or of the one branch that sizes decide for."""
    graphs = {one.name: one.g for one in node.attribute}
    decided = importer._nodes[node.input[0]]
    if is_constant(decided):
        taken = graphs["then_branch" if decided.value.numpy().any() else "else_branch"]
        importer._nodes.update(zip(node.output, results_of(importer, taken).fields, strict=False))
        return
    condition = _scalar(importer, decided)
    then, other = (
        sequence(importer.bb, partial(results_of, importer, graph))
        for graph in (graphs["then_branch"], graphs["else_branch"])
    )
    then, other = _of_one_rank(importer.bb, then, other), _of_one_rank(importer.bb, other, then)
    types = [[_shown(field) for field in one.body.ty.fields] for one in (then, other)]
    results = fields_of(importer.bb, relax.If(condition, then, other))
    if any(lacks_dtype(one.ty) or one.ty.ndim < 0 for one in results):
        raise UnsupportedError(
            f"its branches return {', '.join(types[0])} and {', '.join(types[1])}; expected the same dtypes and "
            "numbers of axes. If an input decides which is taken, give its value, constants={...}; a size, "
            "dynamic={...}"
        )
    pairs = zip(then.body.ty.fields, other.body.ty.fields, strict=True)
    for name, result, pair in zip(node.output, results, pairs, strict=False):
        importer._nodes[name] = importer._with_sizes(name, result, _common(*pair))


def _of_one_rank(bb: relax.BlockBuilder, branch: relax.SeqExpr, other: relax.SeqExpr) -> relax.SeqExpr:
    """A branch whose vectors of one are numbers, where these are numbers in the other branch."""
    pairs = list(zip(branch.body.ty.fields, other.body.ty.fields, strict=True))
    if not any(_is_number(own) and _is_number(others) and own.ndim > others.ndim for own, others in pairs):
        return branch

    def made() -> relax.Expr:
        fields = [bb.emit(relax.TupleGetItem(branch.body, at)) for at in range(len(pairs))]
        return relax.Tuple([as_number(bb, field, others) for field, (_, others) in zip(fields, pairs, strict=True)])

    numbers = sequence(bb, made)
    return relax.SeqExpr([*branch.blocks, *numbers.blocks], numbers.body)


def as_number(bb: relax.BlockBuilder, value: relax.Expr, other: relax.TensorType, both: bool = False) -> relax.Expr:
    """A vector of one as a number, where the other is one; with `both` a number as a vector, too.

    Some exporters take one for the other, and runtimes do not mind.
    """
    differs = value.ty.ndim != other.ndim if both else value.ty.ndim > other.ndim
    is_asked = differs and _is_number(value.ty) and _is_number(other)
    return bb.emit(op.reshape(value, [1] * other.ndim)) if is_asked else value


def _is_number(type: tvm.ir.Type) -> bool:
    return isinstance(type, relax.TensorType) and shape_of(relax.Var("x", type)) in ((), (1,))


def _common(then: relax.TensorType, other: relax.TensorType) -> dict[int, Any]:
    """The sizes that tensors of two types both have, by axis."""
    shapes = [shape_of(relax.Var("x", one)) for one in (then, other)]
    if None in shapes:
        return {}
    return {axis: size for axis, (size, same) in enumerate(zip(*shapes, strict=True)) if structural_equal(size, same)}


def trip_count(importer: Importer, node: onnx.NodeProto) -> relax.Expr | None:
    """What says how many steps a `Loop` has; None if its condition may end it before."""
    body = next(one.g for one in node.attribute if one.name == "body")
    trips, goes_on = ((importer._nodes[one] if one else None) for one in node.input[:2])
    is_sure = goes_on is None or (is_constant(goes_on) and bool(goes_on.value.numpy().all()))
    return trips if is_sure and goes_on_always(body) else None


def loop(importer: Importer, node: onnx.NodeProto, name: str) -> relax.Expr:
    """The last states of a `Loop` whose number of steps is known when it runs; and this number."""
    body = next(one.g for one in node.attribute if one.name == "body")
    bb, nodes = importer.bb, importer._nodes
    trips, goes_on, *states = ((nodes[one] if one else None) for one in node.input)
    count = None if trips is None else _scalar(importer, trips)
    start, states = relax.const(0, "int64"), [*map(bb.emit, states)]
    first = relax.const(True) if goes_on is None else _scalar(importer, goes_on)
    captured = captured_by(importer, body)
    shown = names_for(importer, body, [value.ty for value in (*states, *captured.values())])
    if _has_a_step(trips, goes_on) and not _keeps_types(importer, body, states):

        def once(values: Sequence[relax.Expr]) -> list[relax.Expr]:
            outer = dict(zip(captured, values[len(states) :], strict=False))
            return _once(importer, body, start, values[: len(states)], outer)

        first, *states = called(bb, f"{name}_first", [*states, *captured.values(), *shown], once)
        start = relax.const(1, "int64")
    if count is not None:
        first = bb.emit(op.logical_and(first, op.less(start, count)))
    given = [start, *states]
    step = partial(_step, importer, body, [*captured], count is not None)
    outer = [*captured.values(), *shown, *([] if count is None else [count])]
    after = looped(bb, name, first, given, outer, step)
    nodes.update(zip(node.output, after[1:], strict=False))
    return after[0]


def _has_a_step(trips: relax.Expr | None, goes_on: relax.Expr | None) -> bool:
    """Whether a loop has a first step whatever its inputs are."""
    counts = (one for one in (trips, goes_on) if one is not None)
    return all(is_constant(one) and one.value.numpy().item() > 0 for one in counts)


def _keeps_types(importer: Importer, body: onnx.GraphProto, states: Sequence[relax.Expr]) -> bool:
    """Whether a step makes states of the dtypes and sizes that it takes: what one begins with may be any number."""
    after = sequence(importer.bb, lambda: relax.Tuple(_once(importer, body, relax.const(0, "int64"), states)))
    pairs = zip(states, after.body.ty.fields[1:], strict=True)
    return all(structural_equal(state.ty, type) or (_is_number(state.ty) and _is_number(type)) for state, type in pairs)


def _once(
    importer: Importer,
    body: onnx.GraphProto,
    number: relax.Expr,
    states: Sequence[relax.Expr],
    captured: Mapping[str, relax.Expr] = MappingProxyType({}),
) -> list[relax.Expr]:
    """Whether there is another step after this one, and the states after it."""
    names = [value.name for value in body.input]
    values = dict(zip(names, [number, relax.const(True), *states], strict=True)) | dict(captured)
    goes_on, *after = results_of(importer, body, values).fields[: len(states) + 1]
    return [_scalar(importer, goes_on), *after]


def _step(
    importer: Importer,
    body: onnx.GraphProto,
    captured: Sequence[str],
    is_counted: bool,
    given: Sequence[relax.Expr],
    outer: Sequence[relax.Expr],
) -> list[relax.Expr]:
    bb, (number, *states) = importer.bb, given
    goes_on, *results = _once(importer, body, number, states, dict(zip(captured, outer, strict=False)))
    results = [as_number(bb, *pair, both=True) for pair in zip(results, [one.ty for one in states], strict=True)]
    types = [[described(part.ty) for part in parts] for parts in (states, results)]
    if types[0] != types[1]:
        raise UnsupportedError(
            f"its states are {', '.join(types[0])} before a step and {', '.join(types[1])} after it; expected the same "
            "dtypes and sizes, unless the trip count is a constant"
        )
    after = bb.emit(op.add(number, relax.const(1, "int64")))
    if is_counted:
        goes_on = bb.emit(op.logical_and(goes_on, op.less(after, outer[-1])))
    return [goes_on, after, *results]


def results_of(importer: Importer, graph: onnx.GraphProto, values: dict[str, relax.Expr] | None = None) -> relax.Tuple:
    """The outputs of a graph, of which nobody outside knows the other values."""
    outer = dict(importer._nodes)
    importer._nodes.update(values or {})
    with importer._sizes.within():
        importer._construct_nodes(graph)
        results = [importer.bb.emit(_tensor(importer._nodes[one.name])) for one in graph.output]
    importer._nodes.clear()
    importer._nodes.update(outer)
    return relax.Tuple(results)


def _tensor(value: relax.Expr) -> relax.Expr:
    return op.shape_to_tensor(value) if isinstance(value.ty, relax.ShapeType) else value


def _scalar(importer: Importer, value: relax.Expr) -> relax.Expr:
    """A tensor of one element, without axes."""
    return value if shape_of(value) == () else importer.bb.emit(op.reshape(value, []))


def described(type: tvm.ir.Type) -> str:
    """A type whose sizes are known, as an error writes it."""
    if shape_of(relax.Var("x", type)) is None:
        raise UnsupportedError(f"a branch or a step returns {type}, whose sizes depend on values; expected fixed ones")
    return _shown(type)


def _shown(type: relax.TensorType) -> str:
    var = relax.Var("x", type)
    sizes = shape_of(var)
    return f"{dtype_of(var)}[{', '.join(['?'] * type.ndim if sizes is None else map(str, sizes))}]"


def names_for(
    importer: Importer, body: onnx.GraphProto, types: Sequence[tvm.ir.Type], sizes: Sequence[Any] = ()
) -> list[relax.Expr]:
    """What a loop's function takes besides: a shape of the names that sizes in it may have, if there are any."""
    known = importer._sizes.known
    shapes = [shape_of(relax.Var("x", type)) or () for type in types if isinstance(type, relax.TensorType)]
    shapes += [tuple(known[name].flat) for name in names_read(body) if name in known]
    every = [*sizes, *(size for shape in shapes for size in shape)]
    tops = [part for one in every for part in parts(one) if isinstance(part, tvm.ir.Expr)]
    found = {var.name: var for one in tops for var in tirx.analysis.undefined_vars(one)}
    return [relax.ShapeExpr(list(found.values()))] if found else []


def names_read(body: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph, or one in it, reads; also those that it defines itself."""
    names = (name for graph in graphs_of(body) for node in graph.node for name in node.input)
    results = (value.name for graph in graphs_of(body) for value in graph.output)
    return iter(dict.fromkeys([*names, *results]))


def captured_by(importer: Importer, body: onnx.GraphProto) -> dict[str, relax.Var]:
    """What a graph, or one in it, reads of what is computed around it: variables by their names in the model."""
    nodes, found = importer._nodes, {}
    for name in names_read(body):
        if isinstance(nodes.get(name), relax.Call | relax.TupleGetItem):  # which nobody has given a variable yet
            nodes[name] = importer.bb.emit(nodes[name])
        if isinstance(nodes.get(name), relax.Var):
            found[name] = nodes[name]
    return found
