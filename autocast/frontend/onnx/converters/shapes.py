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
from autocast.frontend.names import variable_name
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape, static
from autocast.ir import shape_of

op = relax.op


def _said(node: Node, at: int, what: str) -> list[Any]:
    """The numbers or expressions that an input holds."""
    found = node.expressions(at)
    if found is None:
        raise UnsupportedError(f"its {what} is computed when the model runs; expected a constant. Export it with one")
    return list(found.reshape(-1))


def _reshape(node: Node) -> relax.Expr:
    if node.opset < 5:
        return node.emit(node.other("Reshape", node.inputs, node.attributes))
    sizes, x = _said(node, 1, "shape"), node[0]
    if node.attributes.get("allowzero") and 0 in sizes:
        return node.emit(node.other("Reshape", node.inputs, node.attributes))
    own = shape(x) if any(isinstance(size, int) and size == 0 for size in sizes) else ()
    to = [own[at] if isinstance(size, int) and size == 0 else size for at, size in enumerate(sizes)]
    return node.emit(op.reshape(x, to))


def _expand(node: Node) -> relax.Expr:
    """Both shapes may have sizes of 1 that take the other's."""
    x, wanted = node[0], _said(node, 1, "shape")
    own = list(shape(x))
    rank = max(len(own), len(wanted))
    own, wanted = [1] * (rank - len(own)) + own, [1] * (rank - len(wanted)) + wanted
    to = [_joined(a, b) for a, b in zip(own, wanted, strict=True)]
    return x if to == list(shape(x)) else node.emit(op.broadcast_to(x, to))


def _joined(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b == 1:
        return a
    if (isinstance(a, int) and a == 1) or tvm.sym.Analyzer().can_prove_equal(a, b):
        return b
    if isinstance(a, int):
        return a  # of which the other has to be as many, or one
    raise UnsupportedError(
        f"it expands a size {a} to {b}, and whether these are one, or one of them 1, is known when the model runs; "
        "expected sizes with one name, or fixed ones: dynamic={name: size}"
    )


def _constant_of_shape(node: Node) -> relax.Expr:
    value = node.attributes.get("value")
    array = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    sizes = _said(node, 0, "shape")
    return node.emit(op.full(sizes, relax.const(tvm.runtime.tensor(array.reshape(()))), str(array.dtype)))


def _range(node: Node) -> relax.Expr:
    """Of integers, in numbers or expressions; others are constants, or refused."""
    ends = [node.expressions(at) for at in range(3)]
    if any(end is None for end in ends):
        return node.emit(node.other("Range", node.inputs, node.attributes))
    start, limit, step = (end.item() for end in ends if end is not None)
    return node.emit(op.arange(start, limit, step, dtype(node[0])))


def _tile(node: Node) -> relax.Expr:
    known = node.expressions(1)
    if known is None:
        return node.emit(node.other("Tile", node.inputs, node.attributes))
    x, repeats = node[0], [*known]
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
            raise UnsupportedError(f"it takes away all axes of size 1 of {list(sizes)}; expected that it says which")
        axes = [at for at, size in enumerate(sizes) if size == 1]
    if all(isinstance(sizes[axis], int) for axis in axes):
        return node.emit(op.squeeze(x, axes))
    return node.emit(op.reshape(x, [size for at, size in enumerate(sizes) if at not in axes]))


#: Ends from here on mean the end, whatever the size is: no axis is as long.
_BEYOND = 10**9


def _slice(node: Node) -> relax.Expr:
    """Of ends that are beyond a size, or count from it, the place that they mean."""
    if node.opset < 10:
        return node.emit(node.other("Slice", node.inputs, node.attributes))
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
    if all(isinstance(one, int) for one in (*sizes, *starts, *ends)) or any(step < 0 for step in steps):
        return node.emit(op.strided_slice(x, axes, starts, ends, steps))
    analyzer = _of_sizes(sizes, starts, ends)
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
            analyzer, zero = _of_sizes(sizes, [*numbers]), tirx.IntImm("int64", 0)
            pairs = [(zero + _place(number, size, analyzer), size) for number, size in zip(numbers, sizes, strict=True)]
            bounds.append([analyzer.simplify(tirx.max(tirx.min(place, size), 0)) for place, size in pairs])
            continue
        given, extents = node.cast(node[at], "int64"), node.emit(op.shape_to_tensor(relax.ShapeExpr(sizes)))
        first = relax.const(0, "int64")
        place = node.emit(op.where(op.less(given, first), op.add(given, extents), given))
        place = node.emit(op.minimum(op.maximum(place, first), extents))
        what = ("begin", "end")[at - 1]
        names = [tirx.Var(f"{variable_name(node.results[0])}_{what}_{axis}", "int64") for axis in axes]
        node.builder.match_cast(node.emit(op.tensor_to_shape(place)), relax.ShapeType(names))
        bounds.append([*names])
    begins, ends = bounds
    ends = [tirx.max(end, begin) for begin, end in zip(begins, ends, strict=True)]
    return node.emit(op.strided_slice(node[0], [*axes], begins, ends, [1] * len(ends), assume_inbound=True))


def _of_sizes(*values: Any) -> tvm.sym.Analyzer:
    """What knows that the dimensions in expressions are not negative."""
    analyzer = tvm.sym.Analyzer()
    expressions = [one for group in values for one in group if isinstance(one, tvm.ir.Expr)]
    for var in {var for one in expressions for var in tirx.analysis.undefined_vars(one)}:
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", 0), tirx.IntImm("int64", _BEYOND)))
    return analyzer


def _place(bound: Any, size: Any, analyzer: tvm.sym.Analyzer) -> Any:
    if not isinstance(bound, int):
        return bound
    if bound >= _BEYOND:
        return size
    if bound >= 0:
        return bound
    return 0 if bound <= -_BEYOND else analyzer.simplify(size + bound)


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


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "LogSoftmax": _softmax(op.nn.log_softmax),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax(op.nn.softmax),
    "Squeeze": _squeeze,
    "Tile": _tile,
}
