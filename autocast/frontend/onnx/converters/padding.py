"""What is put around a tensor, as many elements as numbers say or expressions in the names of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import GenericConst

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape, vector
from autocast.frontend.onnx.expressions import is_size, of_sizes

op = relax.op


def surrounded(node: Node, x: relax.Expr, begins: Sequence[Any], ends: Sequence[Any], value: relax.Expr) -> relax.Expr:
    """A tensor with elements of a value before and after each axis; where there are fewer than none, it is cut.

    Parameters
    ----------
    node
    x
    begins, ends
        How many, for each axis: numbers, or expressions.
    value
        A tensor without axes.
    """
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        sizes = [*shape(x)]
        analyzer = of_sizes(sizes, [begin, end])
        to = [*sizes]
        to[axis] = analyzer.simplify(sizes[axis] + begin + end)
        parts = [x]
        for place, count in ((0, begin), (len(parts), end)):
            more = analyzer.simplify(tirx.max(count, 0)) if not isinstance(count, int) else max(count, 0)
            if not isinstance(more, int | tirx.IntImm) or int(more):
                filling = node.emit(op.broadcast_to(value, [*sizes[:axis], more, *sizes[axis + 1 :]]))
                parts.insert(place and len(parts), filling)
        x = node.emit(op.concat(parts, axis=axis)) if len(parts) > 1 else x
        cuts = [0 if is_size(count) else tirx.max(0 - count, 0) for count in (begin, end)]
        if any(not isinstance(cut, int) or cut for cut in cuts):
            whole = shape(x)[axis]
            x = node.emit(op.strided_slice(x, [axis], [cuts[0]], [analyzer.simplify(whole - cuts[1])]))
        x = node.reshaped(x, to)
    return x


def _counts(node: Node) -> list[Any]:
    """How many elements a `Pad` adds; those that the model computes are what it adds without what it cuts."""
    known = node.expressions(1)
    if known is not None:
        return [*known.reshape(-1)]
    given, none = vector(node, 1), relax.const(0, "int64")
    added = node.named(node.emit(op.maximum(given, none)), "added")
    cut = node.named(node.emit(op.maximum(op.negative(given), none)), "cut")
    return [more - less for more, less in zip(added, cut, strict=True)]


def _pad(node: Node) -> relax.Expr:
    """By TVM's importer where all is known; a value that is computed when the model runs is a tensor."""
    inputs = list(node.inputs)
    is_constant = node.attributes.get("mode", "constant") == "constant"
    counts = _counts(node) if node.opset >= 11 else []
    is_known = all(isinstance(count, int) for count in counts)
    if is_known and (not is_constant or node.opset < 11 or isinstance(node.get(2), GenericConst | None)):
        return node.emit(node.other("Pad", inputs, node.attributes))
    node.refuse("Pad by sizes that vary, other than with a constant,", not is_constant, "expected mode='constant'")
    x, rank = node[0], len(shape(node[0]))
    axes = [int(axis) % rank for axis in node.known_or(3, "axes", range(rank))]
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, counts[: len(axes)], counts[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    value = relax.const(0, dtype(x)) if node.get(2) is None else op.reshape(node[2], [])
    return surrounded(node, x, begins, ends, node.emit(value))


CONVERTERS: dict[str, Converter] = {"Pad": _pad}
