"""Images and quantized numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import divide
from tests.fuzz.operators.products import reorder, spatial
from tests.fuzz.operators.reductions import stored, wide
from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import Tensor, elementwise, linear


def _source(out: int, size: int, mode: str) -> np.ndarray:
    """Where the pixels of a result lie in the image, along one axis."""
    places = np.arange(out, dtype=np.float64)
    if mode == "align_corners":
        return places * ((size - 1) / (out - 1) if out > 1 else 0.0)
    if mode == "asymmetric":
        return places * (size / out)
    return (places + 0.5) * (size / out) - 0.5


def _weights(out: int, size: int, call: relax.Call) -> np.ndarray:
    """A matrix of (out, size)."""
    at = _source(out, size, str(call.attrs.coordinate_transformation_mode))
    result = np.zeros((out, size))
    if str(call.attrs.method) == "nearest_neighbor":
        near = np.clip(np.floor(at + 1e-9), 0, size - 1).astype(int)
        result[np.arange(out), near] = 1
        return result
    low = np.floor(at).astype(int)
    for offset, weight in ((0, 1 - (at - low)), (1, at - low)):
        np.add.at(result, (np.arange(out), np.clip(low + offset, 0, size - 1)), weight)
    return result


@operator("relax.image.resize2d", units=4)
def _resize(call: relax.Call, x: Tensor, size: tuple[int, int]) -> Tensor:
    layout = str(call.attrs.layout)
    order = reorder(layout, "NC" + spatial(layout))
    back = reorder("NC" + spatial(layout), layout)
    rows, columns = (_weights(o, x.shape[order[2 + i]], call) for i, o in enumerate(size))
    scaled = linear(
        lambda a: np.einsum("oh,nchw,pw->ncop", rows, a.transpose(order), columns).transpose(back), 8, wide(x)
    )
    if str(call.attrs.method) != "nearest_neighbor":
        # Places are computed in float32.
        slack = 2.0**-20 * max(x.shape) * np.abs(x.value).max(initial=0)
        scaled = Tensor.of(scaled.value, scaled.error + slack, scaled.dtype)
    return stored(scaled, dtype_of(call))


def _channel(parameter: Any, x: Tensor, axis: int) -> Tensor:
    if not isinstance(parameter, Tensor) or parameter.value.size == 1:
        return parameter if isinstance(parameter, Tensor) else Tensor.exact(parameter, "float32")
    shape = [-1 if i == axis % x.value.ndim else 1 for i in range(x.value.ndim)]
    return Tensor(parameter.value.reshape(shape), parameter.error.reshape(shape), parameter.dtype)


@operator("relax.quantize", units=0)
def _quantize(call: relax.Call, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    dtype = dtype_of(call)
    quotient = divide(None, wide(x), wide(_channel(scale, x, int(call.attrs.axis)))).rounded(None)
    info = np.iinfo(dtype)
    whole = elementwise(np.rint, quotient)
    offset = _channel(zero, x, int(call.attrs.axis))
    tie = np.abs(np.abs(quotient.value - np.floor(quotient.value)) - 0.5) <= quotient.error
    value = np.clip(whole.value + offset.value, info.min, info.max)
    return Tensor.of(value, np.where(tie, np.maximum(whole.error, 1), whole.error), dtype)


@operator("relax.dequantize", units=2)
def _dequantize(call: relax.Call, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    axis = int(call.attrs.axis)
    centred = elementwise(np.subtract, x, _channel(zero, x, axis), dtype="float32")
    return stored(elementwise(np.multiply, centred, wide(_channel(scale, x, axis))), dtype_of(call))
