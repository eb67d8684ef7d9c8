"""Slices and splits, whose bounds are numbers, expressions in the names of dimensions, or computed by the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from autocast.frontend.onnx.converters.node import Converter, Node, said, shape
from autocast.frontend.onnx.expressions import BEYOND, of_sizes
from autocast.ir import shape_of

op = relax.op


def _slice(node: Node) -> relax.Expr:
    """Of ends that are beyond a size, or count from it, the place that they mean."""
    if node.opset < 10:
        said_once = (node.attributes.get(name) for name in ("starts", "ends", "axes"))
        given = [*(None if one is None else np.array(one, object) for one in said_once), None]
    else:
        given = [node.expressions(at) for at in range(1, 5)]
    missing = [at for at in range(1, 5) if given[at - 1] is None and node.get(at) is not None]
    x = node[0]
    if missing:
        is_plain = max(missing) < 3 and (given[3] is None or all(step == 1 for step in given[3]))
        if not is_plain or shape_of(x) is None:
            return node.emit(node.other("Slice", node.inputs, node.attributes))
        count = next((len(one) for one in given[:3] if one is not None), None) or _length(node, missing)
        axes = [*range(count)] if given[2] is None else [int(axis) % x.ty.ndim for axis in given[2]]
        return _slice_between(node, axes, given[:2])
    starts, ends = ([*one] for one in given[:2] if one is not None)
    sizes = shape(x)
    axes = [*range(len(starts))] if given[2] is None else [int(axis) % len(sizes) for axis in given[2]]
    steps = [1] * len(starts) if given[3] is None else [int(step) for step in given[3]]
    if any(step < 0 for step in steps):
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            x = (
                _backwards(node, x, axis, start, end, step)
                if step < 0
                else _forwards(node, x, [axis], [start], [end], [step])
            )
        return x
    return _forwards(node, x, axes, starts, ends, steps)


def _backwards(node: Node, x: relax.Expr, axis: int, start: Any, end: Any, step: int) -> relax.Expr:
    """From the last place on: one that begins before the axis does takes its first element."""
    size = shape(x)[axis]
    analyzer = of_sizes([size, start, end])

    def clamped(place: Any, least: int) -> Any:
        if isinstance(place, int) and isinstance(size, int):
            return min(max(place + size if place < 0 else place, least), size - 1)
        if isinstance(place, int) and abs(place) >= BEYOND:
            return least if place < 0 else size - 1
        place = size + place if isinstance(place, int) and place < 0 else place
        return tirx.max(tirx.min(place, size - 1), least)

    begin, stop = clamped(start, 0), clamped(end, -1)
    count = analyzer.simplify(tirx.max(tirx.floordiv(begin - stop - step - 1, -step), 0))
    places = node.emit(op.multiply(op.arange(0, count, 1, "int64"), relax.const(step, "int64")))
    return node.emit(op.take(x, node.emit(op.add(node.size(begin), places)), axis=axis, mode="clip"))


def _forwards(
    node: Node, x: relax.Expr, axes: list[int], starts: list[Any], ends: list[Any], steps: list[int]
) -> relax.Expr:
    sizes = shape(x)
    if all(isinstance(one, int) for one in (*(sizes[axis] for axis in axes), *starts, *ends)):
        for at, (axis, step) in enumerate(zip(axes, steps, strict=True)):
            starts[at], ends[at], _ = slice(starts[at], ends[at], step).indices(sizes[axis])
            ends[at] = max(starts[at], ends[at])
        return node.emit(op.strided_slice(x, axes, starts, ends, steps))
    analyzer = of_sizes(sizes, starts, ends)
    bounds = [
        [_place(bound, sizes[axis], analyzer) for bound in pair] for *pair, axis in zip(starts, ends, axes, strict=True)
    ]
    begins = [begin for begin, _ in bounds]
    stops = [begin if _is_at_most(stop, begin, analyzer) else stop for begin, stop in bounds]  # TVM's may be below 0
    inside = all(_is_inside(*one, analyzer) for one in zip(begins, stops, [sizes[axis] for axis in axes], strict=True))
    result = node.emit(op.strided_slice(x, axes, begins, stops, steps, assume_inbound=inside))
    if inside or all(isinstance(bound, int) for bound in (*starts, *ends)):
        return result
    to = list(shape(result))
    for axis, begin, stop, step in zip(axes, begins, stops, steps, strict=True):
        to[axis] = analyzer.simplify(tirx.floordiv(stop - begin + step - 1, step))
    return node.emit(op.reshape(result, to))  # which looks, when the model runs, whether there are as many


def _length(node: Node, bounds: Sequence[int]) -> int:
    """How many bounds there are: one if they are parts of tensors that may be of any length."""
    return next((size for at in bounds if isinstance(size := shape(node[at])[0], int)), 1)


def _slice_between(node: Node, axes: Sequence[int], known: Sequence[np.ndarray | None]) -> relax.Expr:
    """Where bounds are numbers that the model computes: these get names."""
    sizes = [shape(node[0])[axis] for axis in axes]
    bounds: list[list[Any]] = []
    for at, numbers in enumerate(known, 1):
        if numbers is not None:
            analyzer, zero = of_sizes(sizes, [*numbers]), tirx.IntImm("int64", 0)
            pairs = [(zero + _place(number, size, analyzer), size) for number, size in zip(numbers, sizes, strict=True)]
            bounds.append([analyzer.simplify(tirx.max(tirx.min(place, size), 0)) for place, size in pairs])
            continue
        given, extents = (
            node.emit(op.reshape(node.cast(node[at], "int64"), [len(axes)])),
            node.emit(op.shape_to_tensor(relax.ShapeExpr(sizes))),
        )
        first = relax.const(0, "int64")
        place = node.emit(op.where(op.less(given, first), op.add(given, extents), given))
        place = node.emit(op.minimum(op.maximum(place, first), extents))
        bounds.append([*node.named(place, ("begin", "end")[at - 1])])
    begins, ends = bounds
    ends = [tirx.max(end, begin) for begin, end in zip(begins, ends, strict=True)]
    return node.emit(op.strided_slice(node[0], [*axes], begins, ends, [1] * len(ends), assume_inbound=True))


def _place(bound: Any, size: Any, analyzer: tvm.sym.Analyzer) -> Any:
    if not isinstance(bound, int):
        return bound
    if bound >= BEYOND:
        return size
    if bound >= 0:
        return bound
    if bound <= -BEYOND:
        return 0
    return max(size + bound, 0) if isinstance(size, int) else analyzer.simplify(tirx.max(size + bound, 0))


def _is_inside(begin: Any, end: Any, size: Any, analyzer: tvm.sym.Analyzer) -> bool:
    return all(_is_at_most(low, high, analyzer) for low, high in ((0, begin), (begin, end), (end, size)))


def _is_at_most(low: Any, high: Any, analyzer: tvm.sym.Analyzer) -> bool:
    return bool(analyzer.can_prove(low <= high) if isinstance(low <= high, tvm.ir.Expr) else low <= high)


def _split(node: Node) -> relax.Expr:
    """Into parts of the sizes that are said, or into as many as there are results, the last of which may be less."""
    x, count = node[0], len(node.results)
    axis = int(node.attributes.get("axis", 0)) % len(shape(x))
    extent = shape(x)[axis]
    sizes = node.attributes.get("split")
    if node.opset >= 13 and node.get(1) is not None:
        sizes = said(node, 1, "part")
    if sizes is None:
        each = -(-extent // count) if isinstance(extent, int) else tirx.floordiv(extent + count - 1, count)
        sizes = [each] * (count - 1) + [extent - each * (count - 1)]
    ends = [sum(sizes[1 : at + 1], sizes[0]) for at in range(len(sizes))]
    whole = [*shape(x)]
    whole[axis] = ends[-1]
    x = node.reshaped(x, whole)  # which looks, when the model runs, whether the parts are all of it
    begins = [0, *ends[:-1]]
    parts = [
        node.emit(op.strided_slice(x, [axis], [begin], [end], assume_inbound=True))
        for begin, end in zip(begins, ends, strict=True)
    ]
    return relax.Tuple(
        [
            node.reshaped(part, [*whole[:axis], size, *whole[axis + 1 :]])
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


CONVERTERS: dict[str, Converter] = {"Slice": _slice, "Split": _split}
