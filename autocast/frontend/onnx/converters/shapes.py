"""Operators whose result has the shape that an input says, in numbers or in the names of dimensions that vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from onnx import numpy_helper
from tvm import relax, tirx

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, said, shape, static, vector
from autocast.frontend.onnx.expressions import Ratio, of_sizes
from autocast.ir import same_shape

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
    return node.named(node.emit(op.where(op.equal(sizes, rest), left, sizes)), "size", 1, replaced=(-1, 0))


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
        made = node.emit(op.where(op.equal(sizes, relax.const(1, "int64")), shown, sizes))
        wanted = [*node.named(made, "size", 1, replaced=(1,))]
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
    ends = [None if one is None else one.item() for one in map(node.expressions, range(3))]
    start, limit, step = ends
    if isinstance(step, int) and step and not any(one is None or isinstance(one, Ratio) for one in ends):
        return _counted_range(node, start, limit, step)
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


def _counted_range(node: Node, start: Any, limit: Any, step: int) -> relax.Expr:
    """Of numbers and sizes: TVM counts others where a step is negative, and less than none where there are none."""
    span, analyzer = limit - start if step > 0 else start - limit, of_sizes([start, limit])
    if step > 0 and (span >= 0 if isinstance(span, int) else analyzer.can_prove(span >= 0)):
        return node.emit(op.arange(start, limit, step, dtype(node[0])))
    count = analyzer.simplify(tirx.max(tirx.floordiv(tirx.IntImm("int64", 0) + span + abs(step) - 1, abs(step)), 0))
    places = op.multiply(op.arange(0, count, 1, "int64"), relax.const(step, "int64"))
    return node.cast(op.add(node.size(start), node.emit(places)), dtype(node[0]))


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


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Range": _range,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Tile": _tile,
}
