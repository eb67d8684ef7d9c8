"""Operators whose result has the shape that an input says, in numbers or in the names of dimensions that vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from onnx import numpy_helper
from tvm import relax, tirx

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, said, shape, static, vector
from autocast.frontend.onnx.expressions import BEYOND, of_sizes
from autocast.ir import same_shape, shape_of

op = relax.op


def _reshape(node: Node) -> relax.Expr:
    """By a shape in which -1 is for what is left, and 0 for the size that there was (unless `allowzero`)."""
    x, keeps = node[0], not node.attributes.get("allowzero")
    known = node.expressions(1) if node.opset >= 5 else np.array(node.attributes["shape"], object)
    if known is None:
        return node.emit(op.reshape(x, _computed_shape(node, x, keeps)))
    sizes = [*known.reshape(-1)]
    if not keeps and 0 in sizes:
        return node.emit(node.other("Reshape", node.inputs, node.attributes))
    own = shape(x) if any(isinstance(size, int) and size == 0 for size in sizes) else ()
    to = [own[at] if isinstance(size, int) and size == 0 else size for at, size in enumerate(sizes)]
    return node.emit(op.reshape(x, to))


def _computed_shape(node: Node, x: relax.Expr, keeps: bool) -> list[Any]:
    """Names for the sizes of a shape that the model computes."""
    sizes, extents = vector(node, 1), shape(x)
    none, one, rest = (relax.const(number, "int64") for number in (0, 1, -1))
    if keeps:
        own = _vector_of([*extents, *[1] * static(sizes, "shape")[0]][: static(sizes, "shape")[0]])
        sizes = node.emit(op.where(op.equal(sizes, none), own, sizes))
    others = op.maximum(op.prod(op.where(op.equal(sizes, rest), one, sizes), keepdims=True), one)
    left = op.floor_divide(op.prod(_vector_of([*extents, 1]), keepdims=True), others)
    return node.named(node.emit(op.where(op.equal(sizes, rest), left, sizes)), "size", 1)


def _vector_of(sizes: Sequence[Any]) -> relax.Expr:
    return op.shape_to_tensor(relax.ShapeExpr([*sizes]))


def _expand(node: Node) -> relax.Expr:
    """Both shapes may have sizes of 1 that take the other's."""
    x, known = node[0], node.expressions(1)
    own = list(shape(x))
    rank = max(len(own), static(node[1], "shape")[0] if known is None else known.size)
    own = [1] * (rank - len(own)) + own
    if known is None:
        sizes = vector(node, 1)
        shown = _vector_of(own[rank - static(sizes, "shape")[0] :])
        wanted = [*node.named(node.emit(op.where(op.equal(sizes, relax.const(1, "int64")), shown, sizes)), "size", 1)]
    else:
        wanted = [*known.reshape(-1)]
    wanted = [1] * (rank - len(wanted)) + wanted
    pairs = [_joined(a, b) for a, b in zip(own, wanted, strict=True)]
    x = node.reshaped(x, [a for a, _ in pairs][rank - len(shape(x)) :])
    to = [b for _, b in pairs]
    return x if same_shape(shape(x), to) else node.emit(op.broadcast_to(x, to))


def _joined(a: Any, b: Any) -> tuple[Any, Any]:
    """A size and what it is expanded to. Two that have other names are taken for the same, which a call looks at."""
    if isinstance(b, int) and b == 1:
        return a, a
    if isinstance(a, int):
        return a, b if a == 1 else a  # of which the other has to be as many, or one
    return (a, a) if tvm.sym.Analyzer().can_prove_equal(a, b) else (b, b)


def _constant_of_shape(node: Node) -> relax.Expr:
    value = node.attributes.get("value")
    array = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    sizes = said(node, 0, "shape")
    return node.emit(op.full(sizes, relax.const(tvm.runtime.tensor(array.reshape(()))), str(array.dtype)))


def _range(node: Node) -> relax.Expr:
    ends = [node.expressions(at) for at in range(3)]
    if all(end is not None for end in ends):
        start, limit, step = (end.item() for end in ends if end is not None)
        return node.emit(op.arange(start, limit, step, dtype(node[0])))
    given = [node.emit(op.reshape(node[at], [1])) for at in range(3)]
    if all(isinstance(node.inputs[at], tvm.ir.GenericConst) for at in range(3)):
        return node.emit(node.other("Range", node.inputs, node.attributes))
    start, limit, step = given
    if "float" in dtype(start):
        count = op.ceil(op.divide(node.cast(op.subtract(limit, start), "float64"), node.cast(step, "float64")))
    else:
        count = op.negative(op.floor_divide(op.subtract(start, limit), step))
    count = op.maximum(node.cast(count, "int64"), relax.const(0, "int64"))
    (size,) = node.named(node.emit(count), "count")
    places = node.cast(op.arange(0, size, 1, "int64"), dtype(start))
    return node.emit(op.add(start, op.multiply(places, step)))


def _tile(node: Node) -> relax.Expr:
    x, repeats = node[0], said(node, 1, "repeats")
    if all(isinstance(one, int) for one in repeats):
        return node.emit(op.tile(x, repeats))
    sizes = shape(x)
    parts = [part for size in sizes for part in (1, size)]
    spread = [part for repeat, size in zip(repeats, sizes, strict=True) for part in (repeat, size)]
    whole = [repeat * size for repeat, size in zip(repeats, sizes, strict=True)]
    return node.emit(op.reshape(op.broadcast_to(op.reshape(x, parts), spread), whole))


def _squeeze(node: Node) -> relax.Expr:
    """Sizes that vary have to be 1 when the model runs, which is looked at then."""
    x, sizes = node[0], shape(node[0])
    if node.opset >= 13 and node.get(1) is not None and node.expressions(1) is None:
        return node.emit(node.other("Squeeze", node.inputs, node.attributes))
    given = node.attributes.get("axes") if node.opset < 13 else node.known_or(1, "axes", None)
    axes = None if given is None else [int(axis) % len(sizes) for axis in np.ravel(given)]
    if axes is None:
        if not all(isinstance(size, int) for size in sizes):
            names = [size for size in sizes if not isinstance(size, int)]
            raise UnsupportedError(
                f"it takes away all axes of size 1 of {list(sizes)}, and which these are is known when the model runs; "
                f'expected axes, or sizes: dynamic={{"{names[0]}": 1}}'
            )
        axes = [at for at, size in enumerate(sizes) if size == 1]
    if all(isinstance(sizes[axis], int) for axis in axes):
        return node.emit(op.squeeze(x, axes))
    return node.emit(op.reshape(x, [size for at, size in enumerate(sizes) if at not in axes]))


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
        count = int(static(node[missing[0]], "bounds")[0])
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
    begins, stops = ([pair[at] for pair in bounds] for at in (0, 1))
    inside = all(_is_inside(*one, analyzer) for one in zip(begins, stops, [sizes[axis] for axis in axes], strict=True))
    result = node.emit(op.strided_slice(x, axes, begins, stops, steps, assume_inbound=inside))
    if inside or all(isinstance(bound, int) for bound in (*starts, *ends)):
        return result
    to = list(shape(result))
    for axis, begin, stop, step in zip(axes, begins, stops, steps, strict=True):
        to[axis] = analyzer.simplify(tirx.floordiv(stop - begin + step - 1, step))
    return node.emit(op.reshape(result, to))  # which looks, when the model runs, whether there are as many


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
        given, extents = node.cast(node[at], "int64"), node.emit(op.shape_to_tensor(relax.ShapeExpr(sizes)))
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
    return all(
        analyzer.can_prove(low <= high) if isinstance(low <= high, tvm.ir.Expr) else low <= high
        for low, high in ((0, begin), (begin, end), (end, size))
    )


def _softmax(operator: Callable[..., relax.Expr]) -> Converter:
    """Before opset 13, over all axes from one on."""

    def convert(node: Node) -> relax.Expr:
        x, sizes = node[0], shape(node[0])
        axis = int(node.attributes.get("axis", -1 if node.opset >= 13 else 1)) % len(sizes)
        if node.opset >= 13 or axis == len(sizes) - 1:
            return node.emit(operator(x, axis))
        before, after = math.prod(sizes[:axis]), math.prod(sizes[axis:])
        return node.emit(op.reshape(operator(op.reshape(x, [before, after]), -1), sizes))

    return convert


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


def _hardmax(node: Node) -> relax.Expr:
    """1 at the first of the largest elements, and 0 elsewhere."""
    x, sizes = node[0], shape(node[0])
    axis = int(node.attributes.get("axis", -1 if node.opset >= 13 else 1)) % len(sizes)
    if node.opset < 13:  # over all axes from this one on
        x, axis = node.emit(op.reshape(x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])])), 1
    places = node.along(op.arange(0, shape(x)[axis], 1, "int64"), axis, len(shape(x)))
    best = node.cast(op.argmax(x, axis, keepdims=True), "int64")
    chosen = node.cast(op.equal(best, places), dtype(x))
    return node.reshaped(chosen, sizes)


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Hardmax": _hardmax,
    "LogSoftmax": _softmax(op.nn.log_softmax),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax(op.nn.softmax),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
}
