"""Operators of one element at a time, and along one axis, that TVM's importer lacks or mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from onnx import helper, numpy_helper
from tvm import relax, te, tirx

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, number, shape, static
from autocast.operators import own

op = relax.op


def _bits(kind: str) -> int:
    return 1 if kind == "bool" else int("".join(char for char in kind if char.isdigit()))


def _constant(node: Node) -> relax.Expr:
    """A tensor, a number, or a list of numbers."""
    ((name, value),) = node.attributes.items()
    kinds = {
        "value": None,
        "value_int": "int64",
        "value_ints": "int64",
        "value_float": "float32",
        "value_floats": "float32",
    }
    node.refuse(f"Constant with {name}", name not in kinds, f"expected one of {', '.join(kinds)}")
    array = numpy_helper.to_array(value) if name == "value" else np.array(value, kinds[name])
    return relax.const(tvm.runtime.tensor(array))


def _bit_shift(node: Node) -> relax.Expr:
    """Shifts by less than nothing or by all bits leave the sign: -1 where it fills the result, and else 0."""
    x, y = node[0], node[1]
    kind, width = dtype(x), _bits(dtype(x))
    zero = number(0, x)
    beyond = op.greater_equal(y, number(width, y)) if width < 64 or kind == "int64" else op.greater(y, number(63, y))
    if not kind.startswith("u"):
        beyond = op.logical_or(beyond, op.less(y, zero))
    within = node.emit(op.where(beyond, zero, y))
    if node.attributes["direction"] == "LEFT":
        return node.emit(op.where(beyond, zero, op.left_shift(x, within)))
    filled = zero if kind.startswith("u") else op.where(op.less(x, zero), number(-1, x), zero)
    return node.emit(op.where(beyond, filled, op.right_shift(x, within)))


def _bit_cast(node: Node) -> relax.Expr:
    to = str(helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
    x = node[0]
    node.refuse(
        f"BitCast of {dtype(x)} to {to}",
        _bits(to) != _bits(dtype(x)) or "bool" in (to, dtype(x)),
        "expected as many bits",
    )

    def reinterpreted(tensor: te.Tensor) -> te.Tensor:
        return te.compute(tensor.shape, lambda *at: tirx.reinterpret(to, tensor(*at)), name="bit_cast")

    return node.builder.emit_te(reinterpreted, x)


def _mod(node: Node) -> relax.Expr:
    """Of floats and with fmod=0, the remainder has the divisor's sign, as in Python."""
    x, y = node[0], node[1]
    if node.attributes.get("fmod") or "float" not in dtype(x):
        return node.emit(node.other("Mod", node.inputs, node.attributes))
    rest = node.emit(op.mod(x, y))
    zero = number(0, x)
    differ = op.not_equal(op.less(rest, zero), op.less(y, zero))
    return node.emit(op.where(op.logical_and(op.not_equal(rest, zero), differ), op.add(rest, y), rest))


def _pow(node: Node) -> relax.Expr:
    """The result is of the dtype of the base. Powers of integers by integers are products."""
    x, y = node[0], node[1]
    if "float" in dtype(x):
        return node.emit(op.power(x, node.cast(y, dtype(x))))
    if "float" in dtype(y):
        wide = node.emit(op.power(node.cast(x, "float64"), node.cast(y, "float64")))
        return node.cast(wide, dtype(x))
    return _integer_power(node, x, y)


def _integer_power(node: Node, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """By squares, as many as the exponent has bits; a negative exponent gives 0 but of 1 and of -1."""
    base, kind, one = x, dtype(x), number(1, x)
    known = y.value.numpy() if isinstance(y, tvm.ir.GenericConst) else None
    count = _bits(dtype(y)) if known is None else max(1, int(abs(known.astype("int64")).max()).bit_length())
    rest, result = node.emit(y), one
    bit = number(1, y)
    for at in range(count):
        odd = op.equal(op.bitwise_and(rest, bit), bit)
        result = node.emit(op.multiply(result, op.where(odd, x, one)))
        if at + 1 < count:
            x, rest = node.emit(op.multiply(x, x)), node.emit(op.right_shift(rest, bit))
    if dtype(y).startswith("u"):
        return result
    signs = op.where(op.equal(op.bitwise_and(y, bit), bit), base, op.multiply(base, base))
    of_one = op.equal(op.multiply(base, base), one)
    inverse = op.where(of_one, signs, number(0, x)) if not kind.startswith("u") else op.where(of_one, one, number(0, x))
    return node.emit(op.where(op.less(y, number(0, y)), inverse, result))


def _is_inf(node: Node) -> relax.Expr:
    x = node[0]
    signs = [sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if node.attributes.get(name, 1)]
    if len(signs) == 2:
        return node.emit(op.isinf(x))
    if not signs:
        return node.emit(op.zeros(shape(x), "bool"))
    return node.emit(op.equal(x, number(signs[0] * np.inf, x)))


def _elu(node: Node) -> relax.Expr:
    x, alpha = node[0], float(node.attributes.get("alpha", 1.0))
    zero = number(0, x)
    low = op.multiply(own.expm1(op.minimum(x, zero)), number(alpha, x))
    return node.emit(op.where(op.greater(x, zero), x, low))


def _dropout(node: Node) -> relax.Expr:
    """To infer: all elements stay, and a mask says so."""
    trains = node.opset >= 12 and bool(node.known_or(2, "training_mode", np.array(False)).item())
    drops = trains and float(node.known_or(1, "ratio", np.array(0.5)).item()) > 0
    node.refuse("Dropout with training_mode=1", drops, "expected a model to infer, whose Dropout drops nothing")
    kept = op.ones(shape(node[0]), "bool" if node.opset >= 10 else dtype(node[0]))
    return relax.Tuple([node[0], node.emit(kept)]) if node.reads(1) else node[0]


def _lp_normalization(node: Node) -> relax.Expr:
    """Zeros stay zeros."""
    x, axis, p = node[0], int(node.attributes.get("axis", -1)), int(node.attributes.get("p", 2))
    sums = op.sum(op.abs(x) if p == 1 else op.multiply(x, x), axis=[axis], keepdims=True)
    norm = node.emit(sums if p == 1 else op.sqrt(node.emit(sums)))
    return node.emit(op.divide(x, op.where(op.equal(norm, number(0, x)), number(1, x), norm)))


def _cumulative(scan: Callable[..., relax.Expr]) -> Converter:
    def convert(node: Node) -> relax.Expr:
        x = node[0]
        axis = int(node.known(1, "axis").item()) % len(shape(x))
        flips = bool(node.attributes.get("reverse"))
        x = node.emit(op.flip(x, axis)) if flips else x
        result = node.emit(scan(x, axis, dtype(x), bool(node.attributes.get("exclusive"))))
        return node.emit(op.flip(result, axis)) if flips else result

    return convert


def _clip(node: Node) -> relax.Expr:
    """First no less than one bound, then no more than the other; one that is left out, or no number, is none."""
    x = node[0]
    for at, (name, bounded) in enumerate((("min", op.maximum), ("max", op.minimum)), 1):
        bound = node.get(at) if node.opset >= 11 else None
        if node.opset < 11 and name in node.attributes:
            bound = relax.const(node.attributes[name], dtype(x))
        if isinstance(bound, tvm.ir.GenericConst):
            if np.isnan(bound.value.numpy().astype("float64")):
                continue
            bound = relax.const(bound.value.numpy().item(), dtype(x))
        elif bound is not None and "float" in dtype(x):
            endless = relax.const(-np.inf if name == "min" else np.inf, dtype(x))
            bound = node.emit(op.where(op.isnan(bound), endless, bound))
        x = x if bound is None else node.emit(bounded(x, bound))
    return x


def _det(node: Node) -> relax.Expr:
    """Of matrices of up to three rows, by products of their elements."""
    x = node[0]
    rows = static(x, "matrix")[-1]
    node.refuse(f"Det of matrices of {rows} rows", rows > 3, "expected up to 3")

    def at(row: int, column: int) -> relax.Expr:
        piece = op.strided_slice(x, axes=[-2, -1], begin=[row, column], end=[row + 1, column + 1])
        return node.emit(op.squeeze(node.emit(piece), axis=[-2, -1]))

    def of(rows: list[int], columns: list[int]) -> relax.Expr:
        if len(rows) == 1:
            return at(rows[0], columns[0])
        total: relax.Expr | None = None
        for place, column in enumerate(columns):
            part = op.multiply(at(rows[0], column), of(rows[1:], [other for other in columns if other != column]))
            total = part if total is None else (op.subtract if place % 2 else op.add)(total, part)
        assert total is not None
        return node.emit(total)

    return of([*range(rows)], [*range(rows)])


def _batch_norm(node: Node) -> relax.Expr:
    """In training, of the batch's own mean and variance, and the running ones are results."""
    if not node.attributes.get("training_mode"):
        return node.emit(node.other("BatchNormalization", node.inputs, node.attributes))
    x, rank = node[0], len(shape(node[0]))
    axes = [axis for axis in range(rank) if axis != 1]
    momentum = float(node.attributes.get("momentum", 0.9))
    mean, variance = node.emit(op.mean(x, axis=axes)), node.emit(op.variance(x, axis=axes))
    scale, bias = (node.along(node[at], 1, rank) for at in (1, 2))
    spread = op.sqrt(op.add(variance, number(float(node.attributes.get("epsilon", 1e-5)), variance)))
    centered = op.subtract(x, node.along(mean, 1, rank))
    y = op.add(op.multiply(op.divide(centered, node.along(spread, 1, rank)), scale), bias)
    running = [
        op.add(op.multiply(node[at], number(momentum, node[at])), op.multiply(new, number(1 - momentum, new)))
        for at, new in ((3, mean), (4, variance))
    ]
    return relax.Tuple([node.emit(y), *map(node.emit, running)])


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
    "BatchNormalization": _batch_norm,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Clip": _clip,
    "Constant": _constant,
    "CumProd": _cumulative(op.cumprod),
    "CumSum": _cumulative(op.cumsum),
    "Det": _det,
    "Dropout": _dropout,
    "Elu": _elu,
    "Hardmax": _hardmax,
    "IsInf": _is_inf,
    "LogSoftmax": _softmax(op.nn.log_softmax),
    "LpNormalization": _lp_normalization,
    "Mod": _mod,
    "Pow": _pow,
    "Softmax": _softmax(op.nn.softmax),
}
