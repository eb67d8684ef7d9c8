"""Convolutions: the adjoint of data is the transposed convolution, that of weights a sum over pixels."""

from __future__ import annotations

from functools import partial

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of, same_shape, shape_of
from autocast.operators.own import OPERATORS
from autocast.training.gradients.registry import Adjoint, Backward, gradient
from autocast.training.gradients.shapes import known_shape

_EXCHANGED = str.maketrans("OI", "IO")


def _convolution(b: Backward, name: str) -> list[Adjoint]:
    data, weights = b.call.args
    answers: list[Adjoint] = [None, None]
    if b.needs[0]:
        attributes = _attributes(b.call)
        attributes["output_padding"] = _output_padding(b.call, data, weights)
        answers[0] = _cut(getattr(op.nn, f"{name}_transpose")(b.adjoint, weights, **attributes), b.call, data)
    if b.needs[1]:
        answers[1] = OPERATORS[f"relax.grad.{name}_weight_backward"](data, weights, b.adjoint, attrs=b.call.attrs)
    return answers


def _transposed(b: Backward, name: str) -> list[Adjoint]:
    """With data and adjoint exchanged: a transposed convolution is the adjoint of one."""
    data, weights = b.call.args
    convolution = getattr(op.nn, name)(b.adjoint, weights, **_attributes(b.call))
    if b.needs[0]:
        answer = b.emit(convolution)
        if not same_shape(shape_of(answer), shape_of(data)):
            raise GradientError(
                f"output_padding={list(map(int, b.call.attrs.output_padding))} with strides="
                f"{list(map(int, b.call.attrs.strides))}; expected less than the stride along every axis"
            )
    backward = OPERATORS[f"relax.grad.{name}_weight_backward"]
    return [
        answer if b.needs[0] else None,
        backward(b.adjoint, weights, data, attrs=convolution.attrs) if b.needs[1] else None,
    ]


def _attributes(call: relax.Call) -> dict[str, object]:
    """The attributes that a convolution and the one that is its adjoint have in common."""
    attributes = call.attrs
    if dtype_of(call.args[0]) != dtype_of(call):
        raise GradientError(
            f"it computes {dtype_of(call)} from {dtype_of(call.args[0])}; expected one dtype. Differentiate the model "
            "in float32, and cast it afterwards"
        )
    names = ("strides", "padding", "dilation")
    return {
        **{name: [int(number) for number in getattr(attributes, name)] for name in names},
        "groups": int(attributes.groups),
        "data_layout": str(attributes.data_layout),
        "kernel_layout": str(attributes.kernel_layout).translate(_EXCHANGED),
        "out_layout": str(attributes.data_layout),
    }


def _output_padding(call: relax.Call, data: relax.Expr, weights: relax.Expr) -> list[int]:
    """Rows and columns at the end that no window of the convolution reached, or that end one that did not fit.

    The most that there may be, where the size of an axis is known at run time only.
    """
    attributes, axes = call.attrs, [axis for axis in str(call.attrs.data_layout) if axis not in "NC"]
    rank, paddings = len(axes), []
    for i, axis in enumerate(axes):
        extent = known_shape(data)[str(attributes.data_layout).index(axis)]
        outputs = known_shape(call)[str(attributes.out_layout or attributes.data_layout).index(axis)]
        kernel = known_shape(weights)[str(attributes.kernel_layout).index(axis)]
        stride = int(attributes.strides[i])
        if stride == 1:
            paddings.append(0)
            continue
        reach = int(attributes.dilation[i]) * (kernel - 1) + 1
        begin, end = int(attributes.padding[i]), int(attributes.padding[i + rank])
        known = isinstance(extent, int)
        paddings.append(extent - ((outputs - 1) * stride + reach - begin - end) if known else stride - 1)
    return paddings


def _cut(adjoint: relax.Expr, call: relax.Call, data: relax.Expr) -> relax.Expr:
    """The rows and columns that `data` has, where the adjoint has the most that there may be."""
    layout, shape = str(call.attrs.data_layout), known_shape(data)
    strides = dict(zip((axis for axis in layout if axis not in "NC"), map(int, call.attrs.strides), strict=True))
    cut = [i for i, axis in enumerate(layout) if strides.get(axis, 1) > 1 and not isinstance(shape[i], int)]
    if not cut:
        return adjoint
    return op.strided_slice(adjoint, cut, [0] * len(cut), [shape[i] for i in cut], assume_inbound=True)


_DATA = "the transposed convolution of the adjoint; for the weights, products of data and adjoint over pixels"
_TRANSPOSED = "the convolution of the adjoint; for the weights, products of adjoint and data over pixels"

RULES = (
    *(gradient(f"relax.nn.conv{n}d", partial(_convolution, name=f"conv{n}d"), why=_DATA) for n in (1, 2, 3)),
    *(
        gradient(f"relax.nn.conv{n}d_transpose", partial(_transposed, name=f"conv{n}d"), why=_TRANSPOSED)
        for n in (1, 2, 3)
    ),
)
