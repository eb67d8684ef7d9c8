"""Operators that move elements, or choose them by where they are, that TVM's importer lacks or mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, tirx
from tvm.ir import GenericConst

from autocast.frontend.names import variable_name
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape, static

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
        place = op.floor_mod(place, op.full((), relax.const(size, "int64"), "int64"))
    place = node.emit(place)
    last = relax.const(count - 1, "int64")
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
    depth = int(node.known(1, "depth").item())
    rank = len(shape(indices)) + 1
    axis = int(node.attributes.get("axis", -1)) % rank
    indices = op.where(op.less(indices, relax.const(0, "int64")), op.add(indices, relax.const(depth, "int64")), indices)
    chosen = op.equal(op.expand_dims(indices, axis), _places(depth, axis, rank))
    off, on = (op.squeeze(op.strided_slice(values, axes=[0], begin=[at], end=[at + 1]), axis=[0]) for at in (0, 1))
    return node.emit(op.where(chosen, on, off))


def _pad(node: Node) -> relax.Expr:
    """By TVM's importer; a value that is computed when the model runs is put where ones get zeros."""
    inputs = list(node.inputs)
    if node.opset >= 11:
        node.known(1, "padding")
    is_known = node.opset < 11 or node.attributes.get("mode", "constant") != "constant" or node.get(2) is None
    if is_known or isinstance(node.inputs[2], GenericConst):
        return node.emit(node.other("Pad", inputs, node.attributes))
    inputs[2] = None
    value = node.emit(op.reshape(node[2], []))
    inner = node.emit(node.other("Pad", inputs, node.attributes))
    ones = node.emit(op.ones(shape(node[0]), "float32"))
    mask = node.emit(node.other("Pad", [ones, *inputs[1:]], node.attributes))
    return node.emit(op.where(op.greater(mask, relax.const(0.5, "float32")), inner, value))


def _top_k(node: Node) -> relax.Expr:
    """The first of all in order: as many as a constant says, a size, or a number that the model computes."""
    if node.opset < 10:
        return node.emit(node.other("TopK", node.inputs, node.attributes))
    x, counts = node[0], node.expressions(1)
    largest, axis = bool(node.attributes.get("largest", 1)), int(node.attributes.get("axis", -1)) % x.ty.ndim
    if counts is not None and isinstance(counts.flat[0], int):
        return node.emit(op.topk(x, counts.flat[0], axis, "both", largest, "int64"))
    if counts is not None:
        count = counts.flat[0]
    else:
        size = node.emit(op.tensor_to_shape(node.emit(op.reshape(node.cast(node[1], "int64"), [1]))))
        count = tirx.Var(f"{variable_name(next(filter(None, node.results)))}_count", "int64")
        node.builder.match_cast(size, relax.ShapeType([count]))
    order = node.emit(op.argsort(x, axis, largest, "int64"))
    places = node.emit(op.strided_slice(order, axes=[axis], begin=[0], end=[count]))
    return relax.Tuple([node.emit(op.gather_elements(x, places, axis)), places])


def _columns_to_image(node: Node) -> relax.Expr:
    """Col2Im: each block's elements are added to where they are from."""
    sizes, block = (node.known(at, what).tolist() for at, what in ((1, "image's sizes"), (2, "block's sizes")))
    count = len(sizes)
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * count)
    begins = _window_starts(sizes, block, strides, dilations, pads)
    offsets = [np.arange(size) * dilation for size, dilation in zip(block, dilations, strict=True)]
    places, inside = _flat_places(sizes, begins, offsets)
    batch, channels, _ = static(node[0], "input")
    channels //= int(np.prod(block))
    total = int(np.prod(sizes))
    places = np.where(inside, places, total)  # one more place takes what is in the padding
    flat = op.reshape(node[0], [batch, channels, places.size])
    index = op.broadcast_to(relax.const(places.T.reshape(1, 1, -1), "int64"), [batch, channels, places.size])
    empty = op.zeros((batch, channels, total + 1), dtype(node[0]))
    sums = node.emit(op.scatter_elements(empty, index, flat, axis=2, reduction="add"))
    kept = op.strided_slice(sums, axes=[2], begin=[0], end=[total])
    return node.emit(op.reshape(kept, [batch, channels, *sizes]))


def _window_starts(
    sizes: Sequence[int], block: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> list[np.ndarray]:
    """Where windows begin along each axis, counted from the first element that is no padding."""
    ends = zip(sizes, block, strides, dilations, pads, pads[len(sizes) :], strict=False)
    return [
        np.arange((size + before + after - (width - 1) * dilation - 1) // stride + 1) * stride - before
        for size, width, stride, dilation, before, after in ends
    ]


def _flat_places(
    sizes: Sequence[int], begins: Sequence[np.ndarray], offsets: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(windows, elements of a window): where each is in the flat image, and whether it is in it."""
    places, inside = np.zeros((1, 1), "int64"), np.ones((1, 1), bool)
    for size, begin, offset in zip(sizes, begins, offsets, strict=True):
        at = begin[:, None] + offset[None]
        flat = places[:, None, :, None] * size + at[None, :, None]
        ok = inside[:, None, :, None] & ((at >= 0) & (at < size))[None, :, None]
        places = flat.reshape(len(places) * len(begin), -1)
        inside = ok.reshape(places.shape)
    return places, inside


def _max_pool(node: Node) -> relax.Expr:
    """By TVM's importer; with its second result, the places of maxima in the flat input, from all windows."""
    if not node.reads(1):
        return node.emit(node.other("MaxPool", node.inputs, node.attributes))
    x = node[0]
    batch, channels, *sizes = static(x, "input")
    kernel, count = node.attributes["kernel_shape"], len(sizes)
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    is_plain = node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and not node.attributes.get("ceil_mode")
    node.refuse("MaxPool with Indices and auto_pad or ceil_mode", not is_plain, "expected pads")
    begins = _window_starts(sizes, kernel, strides, dilations, node.attributes.get("pads", [0] * 2 * count))
    places, inside = _flat_places(sizes, begins, [np.arange(k) * d for k, d in zip(kernel, dilations, strict=True)])
    flat = op.reshape(x, [batch, channels, int(np.prod(sizes))])
    windows = op.take(flat, relax.const(np.where(inside, places, 0), "int64"), axis=2, mode="clip")
    kind = dtype(x)
    lowest = relax.const(-np.inf, kind) if "float" in kind else relax.const(int(np.iinfo(kind).min), kind)
    windows = node.emit(op.where(relax.const(inside), windows, lowest))
    out = [batch, channels, *(len(begin) for begin in begins)]
    best = node.cast(op.argmax(windows, axis=3, keepdims=True), "int64")
    if node.attributes.get("storage_order"):
        grid = np.arange(int(np.prod(sizes))).reshape(sizes[::-1]).T.reshape(-1)
        places = grid[np.where(inside, places, 0)]
    table = op.broadcast_to(relax.const(places, "int64"), [batch, channels, *places.shape])
    chosen = node.emit(op.gather_elements(table, best, axis=3))
    first = np.arange(batch * channels).reshape(batch, channels, 1, 1) * int(np.prod(sizes))
    return relax.Tuple(
        [
            node.emit(op.reshape(op.max(windows, axis=[3]), out)),
            node.emit(op.reshape(op.add(chosen, relax.const(first, "int64")), out)),
        ]
    )


def _max_unpool(node: Node) -> relax.Expr:
    """By TVM's importer; a larger size that the node asks for is filled up with zeros."""
    result = node.emit(node.other("MaxUnpool", (node[0], node[1], None), node.attributes))
    sizes = static(result, "input")
    wanted = node.known_or(2, "output shape", np.array(sizes)).tolist()
    pads = relax.const(
        np.array([*(0 for _ in sizes), *(to - size for size, to in zip(sizes, wanted, strict=True))]), "int64"
    )
    return result if wanted == [*sizes] else node.emit(node.other("Pad", (result, pads, None), {}))


def _conv_transpose(node: Node) -> relax.Expr:
    """By TVM's importer, with the padding that gives the sizes that the node asks for."""
    attributes = dict(node.attributes)
    wanted = attributes.pop("output_shape", None)
    if wanted is None:
        return node.emit(node.other("ConvTranspose", node.inputs, attributes))
    sizes, count = static(node[0], "input")[2:], len(shape(node[0])) - 2
    kernel = static(node[1], "weight")[2:]
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    more = [int(extra) for extra in attributes.get("output_padding", [0] * count)]
    mode = attributes.pop("auto_pad", "NOTSET")
    begins, ends = [], []
    for at, target in enumerate(wanted[-count:]):
        full = strides[at] * (sizes[at] - 1) + more[at] + (kernel[at] - 1) * dilations[at] + 1
        total = full - target
        more[at] += max(0, -total)
        total = max(0, total)
        begins.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
        ends.append(total - begins[-1])
    attributes |= {"pads": [*begins, *ends], "output_padding": more}
    return node.emit(node.other("ConvTranspose", node.inputs, attributes))


CONVERTERS: dict[str, Converter] = {
    "Col2Im": _columns_to_image,
    "ConvTranspose": _conv_transpose,
    "EyeLike": _eye_like,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReverseSequence": _reverse_sequence,
    "SpaceToDepth": _depth_to_columns,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
}
