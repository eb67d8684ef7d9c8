"""Operators that move elements, or choose them by where they are, that TVM's importer lacks or mistakes."""

from __future__ import annotations

from typing import Any

from onnx import helper
from tvm import relax
from tvm.ir import GenericConst

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, said, shape

op = relax.op


def _reverse_sequence(node: Node) -> relax.Expr:
    """Each sequence of the batch up to its length: elements are taken from where they come from."""
    x, lengths = node[0], node[1]
    time, batch = int(node.attributes.get("time_axis", 0)), int(node.attributes.get("batch_axis", 1))
    sizes = shape(x)
    rank = len(sizes)
    places = _places(sizes[time], time, rank)
    length = node.along(node.cast(lengths, "int64"), batch, rank)
    last = op.subtract(op.subtract(length, relax.const(1, "int64")), places)
    source = node.emit(op.where(op.less(places, length), last, places))
    return node.emit(op.gather_elements(x, op.broadcast_to(source, sizes), axis=time))


def _places(size: Any, axis: int, rank: int) -> relax.Expr:
    """0, 1, ... along an axis of a tensor of `rank` axes."""
    return op.reshape(op.arange(0, size, 1, "int64"), [size if at == axis else 1 for at in range(rank)])


def _tensor_scatter(node: Node) -> relax.Expr:
    """A cache, in which each entry's update is written from its index on; with mode="circular", around its end."""
    cache, update = node[0], node[1]
    sizes, rank = shape(cache), len(shape(cache))
    axis = int(node.attributes.get("axis", -2)) % rank
    size, count = sizes[axis], shape(update)[axis]
    starts = relax.const(0, "int64") if node.get(2) is None else node.along(node.cast(node[2], "int64"), 0, rank)
    place = op.subtract(_places(size, axis, rank), starts)
    if node.attributes.get("mode", "linear") == "circular":
        place = op.floor_mod(place, node.size(size))
    place = node.emit(place)
    last = node.emit(op.subtract(node.size(count), relax.const(1, "int64")))
    written = op.logical_and(op.greater_equal(place, relax.const(0, "int64")), op.less_equal(place, last))
    source = op.minimum(op.maximum(place, relax.const(0, "int64")), last)
    taken = op.gather_elements(update, op.broadcast_to(node.emit(source), sizes), axis=axis)
    return node.emit(op.where(written, taken, cache))


def _depth_to_columns(node: Node) -> relax.Expr:
    """SpaceToDepth; with mode="CRD", the places within a block count after the channels."""
    x, size = node[0], int(node.attributes["blocksize"])
    batch, channels, height, width = shape(x)
    parts = op.reshape(x, [batch, channels, height // size, size, width // size, size])
    order = [0, 1, 3, 5, 2, 4] if node.attributes.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    to = [batch, channels * size * size, height // size, width // size]
    return node.emit(op.reshape(op.permute_dims(parts, order), to))


def _eye_like(node: Node) -> relax.Expr:
    to = node.attributes.get("dtype")
    kind = dtype(node[0]) if to is None else str(helper.tensor_dtype_to_np_dtype(int(to)))
    rows, columns = shape(node[0])
    row = op.add(_places(rows, 0, 2), relax.const(int(node.attributes.get("k", 0)), "int64"))
    return node.cast(op.equal(row, _places(columns, 1, 2)), kind)


def _one_hot(node: Node) -> relax.Expr:
    """The second of two values where an index is, counted from the end where it is negative; the first elsewhere."""
    indices, values = node.cast(node[0], "int64"), node[2]
    is_known = isinstance(node.inputs[1], GenericConst)
    (depth,) = [int(node.known(1, "depth").item())] if is_known else said(node, 1, "depth")
    rank = len(shape(indices)) + 1
    axis = int(node.attributes.get("axis", -1)) % rank
    indices = op.where(op.less(indices, relax.const(0, "int64")), op.add(indices, node.size(depth)), indices)
    chosen = op.equal(op.expand_dims(indices, axis), _places(depth, axis, rank))
    off, on = (op.squeeze(op.strided_slice(values, axes=[0], begin=[at], end=[at + 1]), axis=[0]) for at in (0, 1))
    return node.emit(op.where(chosen, on, off))


def _top_k(node: Node) -> relax.Expr:
    """The first of all in order: as many as a constant says, a size, or a number that the model computes."""
    if node.opset < 10:
        return node.emit(node.other("TopK", node.inputs, node.attributes))
    x, counts = node[0], node.expressions(1)
    largest, axis = bool(node.attributes.get("largest", 1)), int(node.attributes.get("axis", -1)) % x.ty.ndim
    if counts is not None and isinstance(counts.flat[0], int):
        return node.emit(op.topk(x, counts.flat[0], axis, "both", largest, "int64"))
    (count,) = said(node, 1, "count")
    order = node.emit(op.argsort(x, axis, largest, "int64"))
    places = node.emit(op.strided_slice(order, axes=[axis], begin=[0], end=[count]))
    return relax.Tuple([node.emit(op.gather_elements(x, places, axis)), places])


CONVERTERS: dict[str, Converter] = {
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "SpaceToDepth": _depth_to_columns,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
}
