"""What is put around a tensor, as many elements as numbers say or expressions in the names of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
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
    counts = [*begins, *ends]
    if isinstance(value, GenericConst) and all(isinstance(count, int) and count >= 0 for count in counts):
        widths = [int(count) for pair in zip(begins, ends, strict=True) for count in pair]
        return node.emit(op.nn.pad(x, widths, "constant", value.value.numpy().item())) if any(widths) else x
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        sizes = [*shape(x)]
        analyzer = of_sizes(sizes, [begin, end])
        to = [*sizes]
        to[axis] = analyzer.simplify(sizes[axis] + begin + end)
        before, after = (_filling(node, value, sizes, axis, count) for count in (begin, end))
        x = node.emit(op.concat([*before, x, *after], axis=axis)) if before or after else x
        cuts = [_cut(count) for count in (begin, end)]
        if any(not isinstance(cut, int) or cut for cut in cuts):
            end = shape(x)[axis] - cuts[1]
            end = end if isinstance(end, int) else analyzer.simplify(end)
            x = node.emit(op.strided_slice(x, [axis], [cuts[0]], [end]))
        x = node.reshaped(x, to)
    return x


def _cut(count: Any) -> Any:
    """How many elements are cut off where this many, less than none, are added."""
    if isinstance(count, int | np.integer):
        return max(-int(count), 0)
    return 0 if is_size(count) else tirx.max(0 - count, 0)


def _filling(node: Node, value: relax.Expr, sizes: Sequence[Any], axis: int, count: Any) -> list[relax.Expr]:
    """A tensor of a value, of `count` elements along an axis; none where that is known to be 0 or less."""
    more = max(count, 0) if isinstance(count, int) else of_sizes([count]).simplify(tirx.max(count, 0))
    if isinstance(more, int | tirx.IntImm) and int(more) == 0:
        return []
    return [node.emit(op.broadcast_to(value, [*sizes[:axis], more, *sizes[axis + 1 :]]))]


def _counts(node: Node) -> list[Any]:
    """How many elements a `Pad` adds; those that the model computes are what it adds without what it cuts."""
    if node.opset < 11:
        return [int(count) for count in node.attributes["pads" if node.opset > 1 else "paddings"]]
    known = node.expressions(1)
    if known is not None:
        return [*known.reshape(-1)]
    given, none = vector(node, 1), relax.const(0, "int64")
    added = node.named(node.emit(op.maximum(given, none)), "added")
    cut = node.named(node.emit(op.maximum(op.negative(given), none)), "cut")
    partly = node.partly(1)
    said = [None] * len(added) if partly is None else partly.reshape(-1)
    return [more - less if one is None else one for one, more, less in zip(said, added, cut, strict=True)]


def _pad(node: Node) -> relax.Expr:
    x, rank, counts = node[0], len(shape(node[0])), _counts(node)
    axes = [int(axis) % rank for axis in node.known_or(3, "axes", range(rank))]
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, counts[: len(axes)], counts[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    mode = node.attributes.get("mode", "constant")
    if mode == "constant":
        return surrounded(node, x, begins, ends, _value(node, x))
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if not all(isinstance(count, int) and count == 0 for count in (begin, end)):
            x = node.emit(op.take(x, _sources(node, shape(x)[axis], begin, end, mode), axis=axis, mode="clip"))
    return x


def _value(node: Node, x: relax.Expr) -> relax.Expr:
    """What a `Pad` with a constant puts around a tensor, without axes."""
    given = node.get(2) if node.opset >= 11 else None
    if given is None:
        return relax.const(node.attributes.get("value", 0) if node.opset < 11 else 0, dtype(x))
    if isinstance(given, GenericConst):
        return relax.const(given.value.numpy().item(), dtype(x))
    return node.emit(op.reshape(given, []))


def _sources(node: Node, size: Any, begin: Any, end: Any, mode: Any) -> relax.Expr:
    """Where the elements of an axis come from: edge, reflect (at the last ones) or wrap."""
    if all(isinstance(one, int) for one in (size, begin, end)):
        more = [max(count, 0) for count in (begin, end)]
        places = np.pad(np.arange(size), more, mode=mode)
        return relax.const(places[more[0] - begin : len(places) - (more[1] - end)], "int64")
    one, zero = relax.const(1, "int64"), relax.const(0, "int64")
    count = node.size(size)
    analyzer = of_sizes([size, begin, end])
    places = node.emit(op.arange(0, analyzer.simplify(size + begin + end), 1, "int64"))
    places = node.emit(op.subtract(places, node.size(begin)))
    last = node.emit(op.subtract(count, one))
    if mode == "wrap":
        return node.emit(op.floor_mod(places, op.maximum(count, one)))
    if mode == "reflect":
        period = node.emit(op.maximum(op.add(last, last), one))
        places = node.emit(op.floor_mod(places, period))
        return node.emit(op.minimum(places, op.subtract(period, places)))
    return node.emit(op.minimum(op.maximum(places, zero), last))


CONVERTERS: dict[str, Converter] = {"Pad": _pad}
