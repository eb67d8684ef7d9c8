"""Convolutions and pooling: by TVM's importer, with paddings that `auto_pad` says, also of sizes that vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, fixed, shape, static
from autocast.frontend.onnx.converters.padding import surrounded

op = relax.op


def padded(
    node: Node, x: relax.Expr, kernel: Sequence[int], attributes: Mapping[str, Any], value: float | int = 0
) -> tuple[relax.Expr, dict[str, Any]]:
    """The data and the attributes of a node without `auto_pad`: its padding is in `pads`, or around the data.

    Parameters
    ----------
    node, x
    kernel
        How many elements a window has along each axis.
    attributes
        `auto_pad` is one of ONNX's four; strides and dilations are read.
    value
        What paddings hold that depend on sizes that vary.
    """
    rest, count = dict(attributes), len(kernel)
    mode = rest.pop("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return x, rest
    rest["pads"] = [0] * 2 * count
    if mode == "VALID":
        return x, rest
    strides, dilations = (rest.get(name, [1] * count) for name in ("strides", "dilations"))
    totals = [
        _total(extent, stride, (size - 1) * dilation + 1)
        for extent, stride, size, dilation in zip(shape(x)[2:], strides, kernel, dilations, strict=True)
    ]
    halves = [total // 2 for total in totals]
    others = [total - half for total, half in zip(totals, halves, strict=True)]
    begins, ends = (halves, others) if mode == "SAME_UPPER" else (others, halves)
    if all(isinstance(total, int) for total in totals):
        return x, rest | {"pads": [*begins, *ends]}
    return surrounded(node, x, [0, 0, *begins], [0, 0, *ends], relax.const(value, dtype(x))), rest


def _total(extent: Any, stride: int, width: int) -> Any:
    """The padding of an axis whose windows begin at every `stride`th element, the last of them inside."""
    if stride == 1:
        return width - 1
    if isinstance(extent, int):
        return max((-(-extent // stride) - 1) * stride + width - extent, 0)
    return tirx.max(tirx.floordiv(extent + stride - 1, stride) * stride - stride + width - extent, 0)


def convolution(node: Node, x: relax.Expr, weight: relax.Expr, bias: relax.Expr | None = None) -> relax.Expr:
    """What a `Conv` with the node's attributes makes of tensors."""
    x, attributes = padded(node, x, static(weight, "weight")[2:], node.attributes)
    return node.emit(node.other("Conv", (x, weight, bias), attributes))


def _average_pool(node: Node) -> relax.Expr:
    """Windows that reach beyond sizes that vary are divided by how much of them is inside."""
    kernel = node.attributes["kernel_shape"]
    x, attributes = padded(node, node[0], kernel, node.attributes)
    result = node.emit(node.other("AveragePool", (x,), attributes))
    if x.same_as(node[0]) or node.attributes.get("count_include_pad"):
        return result
    ones = node.emit(op.ones([1, 1, *shape(node[0])[2:]], dtype(x)))
    ones, attributes = padded(node, ones, kernel, node.attributes)
    return node.emit(op.divide(result, node.emit(node.other("AveragePool", (ones,), attributes))))


def _lp_pool(node: Node) -> relax.Expr:
    x, attributes = padded(node, node[0], node.attributes["kernel_shape"], node.attributes)
    return node.emit(node.other("LpPool", (x,), attributes))


def _max_pool(node: Node) -> relax.Expr:
    """With its second result, the places of maxima in the flat input, from all windows."""
    kind = dtype(node[0])
    lowest = -np.inf if "float" in kind else int(np.iinfo(kind).min)
    attributes = dict(node.attributes)
    if not node.reads(1):
        x, attributes = padded(node, node[0], attributes["kernel_shape"], attributes, lowest)
        return node.emit(node.other("MaxPool", (x,), attributes))
    x = node[0]
    batch, channels, *extents = shape(x)
    sizes, kernel, count = fixed(extents, "image"), attributes["kernel_shape"], len(extents)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = padded(node, x, kernel, attributes)[1].get("pads", [0] * 2 * count)
    begins = _window_starts(sizes, kernel, strides, dilations, pads, bool(attributes.get("ceil_mode")))
    places, inside = _flat_places(sizes, begins, [np.arange(k) * d for k, d in zip(kernel, dilations, strict=True)])
    flat = op.reshape(x, [batch, channels, int(np.prod(sizes))])
    windows = op.take(flat, relax.const(np.where(inside, places, 0), "int64"), axis=2, mode="clip")
    windows = node.emit(op.where(relax.const(inside), windows, relax.const(lowest, kind)))
    out = [batch, channels, *(len(begin) for begin in begins)]
    best = node.cast(op.argmax(windows, axis=3, keepdims=True), "int64")
    if attributes.get("storage_order"):
        grid = np.arange(int(np.prod(sizes))).reshape(sizes[::-1]).T.reshape(-1)
        places = grid[np.where(inside, places, 0)]
    table = op.broadcast_to(relax.const(places, "int64"), [batch, channels, *places.shape])
    chosen = node.emit(op.gather_elements(table, best, axis=3))
    planes = op.reshape(op.arange(0, batch * channels, 1, "int64"), [batch, channels, 1, 1])
    first = node.emit(op.multiply(planes, relax.const(int(np.prod(sizes)), "int64")))
    return relax.Tuple(
        [
            node.emit(op.reshape(op.max(windows, axis=[3]), out)),
            node.emit(op.reshape(op.add(chosen, first), out)),
        ]
    )


def _columns_to_image(node: Node) -> relax.Expr:
    """Col2Im: each block's elements are added to where they are from."""
    sizes, block = (node.known(at, what).tolist() for at, what in ((1, "image's sizes"), (2, "block's sizes")))
    count = len(sizes)
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * count)
    begins = _window_starts(sizes, block, strides, dilations, pads)
    offsets = [np.arange(size) * dilation for size, dilation in zip(block, dilations, strict=True)]
    places, inside = _flat_places(sizes, begins, offsets)
    batch, channels, _ = shape(node[0])
    channels = channels // int(np.prod(block))
    total = int(np.prod(sizes))
    places = np.where(inside, places, total)  # one more place takes what is in the padding
    flat = op.reshape(node[0], [batch, channels, places.size])
    index = op.broadcast_to(relax.const(places.T.reshape(1, 1, -1), "int64"), [batch, channels, places.size])
    empty = op.zeros((batch, channels, total + 1), dtype(node[0]))
    sums = node.emit(op.scatter_elements(empty, index, flat, axis=2, reduction="add"))
    kept = op.strided_slice(sums, axes=[2], begin=[0], end=[total])
    return node.emit(op.reshape(kept, [batch, channels, *sizes]))


def _window_starts(
    sizes: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    has_last: bool = False,
) -> list[np.ndarray]:
    """Where windows begin along each axis, counted from the first element that is no padding.

    `has_last`: whether a last one may reach beyond the padding, as long as it begins before it.
    """
    starts = []
    for size, width, stride, dilation, before, after in zip(
        *(sizes, block, strides, dilations, pads[: len(sizes)], pads[len(sizes) :]), strict=True
    ):
        room = size + before + after - (width - 1) * dilation - 1
        begins = np.arange((-(-room // stride) if has_last else room // stride) + 1) * stride - before
        starts.append(begins[begins < size] if has_last else begins)
    return starts


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
    "AveragePool": _average_pool,
    "Col2Im": _columns_to_image,
    "Conv": lambda node: convolution(node, node[0], node[1], node.get(2)),
    "ConvTranspose": _conv_transpose,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
