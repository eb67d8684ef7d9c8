"""Quantized operators, exactly: products and sums of integers in int32, and one rounding at the end.

A quantized tensor stands for `scale * (tensor - zero)`. A product of two is summed in int32, as ONNX and its runtimes
do, and only then multiplied by both scales over the result's: those are one float32 number, as in onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape
from autocast.frontend.onnx.converters.windows import convolution
from autocast.frontend.onnx.recurrent import recurrent

op = relax.op


class Quantized(NamedTuple):
    """A tensor of integers, what one of its steps is, and which integer is zero."""

    tensor: relax.Expr
    scale: relax.Expr
    zero: relax.Expr | None

    def steps(self, node: Node, axis: int) -> relax.Expr:
        """How many steps each element is from zero, in int32; a vector of zeros lies along `axis`."""
        wide = node.cast(self.tensor, "int32")
        if self.zero is None:
            return wide
        return node.emit(op.subtract(wide, node.along(node.cast(self.zero, "int32"), axis, len(shape(self.tensor)))))

    def real(self, node: Node) -> relax.Expr:
        return node.emit(op.multiply(node.cast(self.steps(node, 0), "float32"), node.cast(self.scale, "float32")))


def _quantized(node: Node, at: int) -> Quantized:
    """Three inputs: a tensor, its scale and its zero."""
    return Quantized(
        node[at], one_number(node, node[at + 1]), None if node.get(at + 2) is None else one_number(node, node[at + 2])
    )


def one_number(node: Node, number: relax.Expr) -> relax.Expr:
    """A number without axes, where it came as a vector of one."""
    return node.emit(op.reshape(number, [])) if shape(number) == (1,) else number


def rounded(node: Node, steps: relax.Expr, zero: relax.Expr | None, to: str) -> relax.Expr:
    """Numbers of steps, float32, as the nearest integers from zero, halves as even ones, within those there are."""
    bounds = np.iinfo(to)
    zero = None if zero is None else node.cast(zero, "float32")
    moved = op.round(steps) if zero is None else op.add(op.round(steps), zero)
    return node.emit(op.astype(op.clip(moved, int(bounds.min), int(bounds.max)), to))


def _result(node: Node, real: relax.Expr, at: int, like: relax.Expr) -> relax.Expr:
    """Real numbers as a quantized tensor, of the scale and the zero that are the inputs `at` and the next."""
    zero = node.get(at + 1)
    to = dtype(like if zero is None else zero)
    steps = op.divide(real, op.astype(one_number(node, node[at]), "float32"))
    return rounded(node, steps, None if zero is None else one_number(node, zero), to)


def _requantized(
    node: Node,
    sums: relax.Expr,
    a: Quantized,
    b: Quantized,
    scale: relax.Expr,
    zero: relax.Expr | None,
    axes: tuple[int, int],
) -> relax.Expr:
    """Sums of products, int32, in the steps of the result. `axes`: where vectors of scales of `a` and `b` lie."""
    rank = len(shape(sums))
    factors = [node.along(node.cast(one.scale, "float32"), axis, rank) for one, axis in zip((a, b), axes, strict=True)]
    factor = op.divide(op.multiply(*factors), op.astype(one_number(node, scale), "float32"))
    steps = op.multiply(op.astype(sums, "float32"), factor)
    return rounded(
        node, steps, None if zero is None else one_number(node, zero), dtype(a.tensor if zero is None else zero)
    )


def _matmul(node: Node, a: Quantized, b: Quantized) -> relax.Expr:
    """The product, in int32. A vector of zeros is one for each row of `a`, or for each column of `b`."""
    return node.emit(op.matmul(a.steps(node, -2), b.steps(node, -1), out_dtype="int32"))


def _conv(node: Node, x: Quantized, w: Quantized) -> relax.Expr:
    """The convolution, in int32. A vector of zeros of the weight is one for each channel of the result."""
    return convolution(node, x.steps(node, 1), w.steps(node, 0))


def _matmul_integer(node: Node) -> relax.Expr:
    a, b = (Quantized(node[at], node[at], node.get(at + 2)) for at in (0, 1))
    return _matmul(node, a, b)


def _conv_integer(node: Node) -> relax.Expr:
    x, w = (Quantized(node[at], node[at], node.get(at + 2)) for at in (0, 1))
    return _conv(node, x._replace(zero=None if x.zero is None else one_number(node, x.zero)), w)


def _qlinear_matmul(node: Node) -> relax.Expr:
    a, b = _quantized(node, 0), _quantized(node, 3)
    result = _requantized(node, _matmul(node, a, b), a, b, node[6], node.get(7), (-2, -1))
    return result


def _qlinear_conv(node: Node) -> relax.Expr:
    x, w = _quantized(node, 0), _quantized(node, 3)
    sums = _conv(node, x, w)
    bias = node.get(8)
    if bias is not None:
        sums = node.emit(op.add(sums, node.along(bias, 1, len(shape(sums)))))
    return _requantized(node, sums, x, w, node[6], node.get(7), (1, 1))


def _matmul_to_float(node: Node) -> relax.Expr:
    """A, B, their scales, their zeros, and a bias."""
    a, b = (Quantized(node[at], one_number(node, node[at + 2]), node.get(at + 4)) for at in (0, 1))
    return real_product(node, a, b, node.get(6))


def _dynamic_matmul(node: Node) -> relax.Expr:
    """A, which is quantized here, B, its scale, its zero, and a bias."""
    tensor, scale, zero = (node.emit(part) for part in node.other("DynamicQuantizeLinear", (node[0],), {}))
    b = Quantized(node[1], one_number(node, node[2]), node.get(3))
    return real_product(node, Quantized(tensor, scale, zero), b, node.get(4))


def real_product(node: Node, a: Quantized, b: Quantized, bias: relax.Expr | None) -> relax.Expr:
    sums = node.cast(_matmul(node, a, b), dtype(a.scale))
    rank = len(shape(a.tensor))
    product = op.multiply(sums, op.multiply(node.along(a.scale, -2, rank), node.along(b.scale, -1, rank)))
    return node.emit(product if bias is None else op.add(product, bias))


def _qgemm(node: Node) -> relax.Expr:
    """A and B, each with its scale and its zero, a bias of int32, and the scale and zero of the result, or neither."""
    a, b = _quantized(node, 0), _quantized(node, 3)
    alpha = float(node.attributes.get("alpha", 1.0))
    for name, at in (("transA", 0), ("transB", 1)):
        if node.attributes.get(name):
            a, b = (
                one._replace(tensor=node.emit(op.permute_dims(one.tensor))) if at == which else one
                for which, one in enumerate((a, b))
            )
    sums = _matmul(node, a, b)
    if (bias := node.get(6)) is not None:
        sums = node.emit(op.add(sums, bias))
    if alpha != 1.0:
        a = a._replace(scale=node.emit(op.multiply(a.scale, relax.const(alpha, dtype(a.scale)))))
    if node.get(7) is not None:
        return _requantized(node, sums, a, b, node[7], node.get(8), (-2, -1))
    factor = op.multiply(node.along(a.scale, -2, 2), node.along(b.scale, -1, 2))
    return node.emit(op.multiply(op.astype(sums, "float32"), factor))


def _qlinear_binary(operator: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    def convert(node: Node) -> relax.Expr:
        a, b = _quantized(node, 0), _quantized(node, 3)
        return _result(node, operator(a.real(node), b.real(node)), 6, a.tensor)

    return convert


def _qlinear_where(node: Node) -> relax.Expr:
    x, y = _quantized(node, 1), _quantized(node, 4)
    return _result(node, op.where(node[0], x.real(node), y.real(node)), 7, x.tensor)


def _qlinear_unary(name: str) -> Converter:
    """An operator of ONNX of one real tensor, between quantized ones: X, scale, zero, and those of the result."""

    def convert(node: Node) -> relax.Expr:
        x = _quantized(node, 0)
        attributes = {key: value for key, value in node.attributes.items() if key != "channels_last"}
        node.refuse("channels_last=1", bool(node.attributes.get("channels_last")), "expected channels first")
        return _result(node, node.other(name, (x.real(node),), attributes), 3, x.tensor)

    return convert


def _qlinear_softmax(node: Node) -> relax.Expr:
    """`opset` says whether it is over one axis, as from opset 13 on, or over all from that one on."""
    x = _quantized(node, 0)
    real, sizes = node.emit(x.real(node)), shape(x.tensor)
    if int(node.attributes.get("opset", node.opset)) >= 13:
        return _result(node, op.nn.softmax(real, int(node.attributes.get("axis", -1))), 3, x.tensor)
    axis = int(node.attributes.get("axis", 1)) % len(sizes)
    rows = node.emit(op.reshape(real, [math.prod(sizes[:axis]), math.prod(sizes[axis:])]))
    return _result(node, node.reshaped(node.emit(op.nn.softmax(rows, 1)), sizes), 3, x.tensor)


def _qlinear_concat(node: Node) -> relax.Expr:
    """The scale and the zero of the result, then a tensor, its scale and its zero, for each part."""
    parts = [_quantized(node, at) for at in range(2, len(node.inputs), 3)]
    real = op.concat([part.real(node) for part in parts], axis=int(node.attributes["axis"]))
    return _result(node, real, 0, parts[0].tensor)


def _linear(name: str) -> Converter:
    """ONNX's operator, which onnxruntime's own stands for."""

    def convert(node: Node) -> relax.Expr:
        return node.emit(node.other(name, node.inputs, node.attributes))

    return convert


def _dynamic_lstm(node: Node) -> relax.Expr:
    """Its weights in float32, of which inputs and states are no integers as in onnxruntime: less is rounded."""
    weights = [_weights(node, at, at_scale) for at, at_scale in ((1, 8), (2, 10))]
    inputs = [node[0], *weights, *(node.get(at) for at in range(3, 8))]
    return recurrent(node.builder, "LSTM", inputs, node.attributes)


def _weights(node: Node, at: int, at_scale: int) -> relax.Expr:
    """(directions, inputs, gates) of integers as (directions, gates, inputs) of float32."""
    steps, scale, zero = (node.known(place, "weight") for place in (at, at_scale, at_scale + 1))
    scale, zero = (one.reshape(len(one), 1, -1).astype("float32") for one in (scale, zero))
    real = (steps.astype("float32") - zero) * scale
    return relax.const(np.ascontiguousarray(real.transpose(0, 2, 1)))


_MICROSOFT = "com.microsoft."

CONVERTERS: dict[str, Converter] = {
    "ConvInteger": _conv_integer,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    f"{_MICROSOFT}DequantizeLinear": _linear("DequantizeLinear"),
    f"{_MICROSOFT}DynamicQuantizeLSTM": _dynamic_lstm,
    f"{_MICROSOFT}DynamicQuantizeMatMul": _dynamic_matmul,
    f"{_MICROSOFT}MatMulIntegerToFloat": _matmul_to_float,
    f"{_MICROSOFT}QGemm": _qgemm,
    f"{_MICROSOFT}QLinearAdd": _qlinear_binary(op.add),
    f"{_MICROSOFT}QLinearAveragePool": _qlinear_unary("AveragePool"),
    f"{_MICROSOFT}QLinearConcat": _qlinear_concat,
    f"{_MICROSOFT}QLinearGlobalAveragePool": _qlinear_unary("GlobalAveragePool"),
    f"{_MICROSOFT}QLinearLeakyRelu": _qlinear_unary("LeakyRelu"),
    f"{_MICROSOFT}QLinearMul": _qlinear_binary(op.multiply),
    f"{_MICROSOFT}QLinearSigmoid": _qlinear_unary("Sigmoid"),
    f"{_MICROSOFT}QLinearSoftmax": _qlinear_softmax,
    f"{_MICROSOFT}QLinearWhere": _qlinear_where,
    f"{_MICROSOFT}QuantizeLinear": _linear("QuantizeLinear"),
}
