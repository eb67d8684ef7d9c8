"""Images and quantized numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import divide
from tests.fuzz.operators.products import reorder, spatial
from tests.fuzz.operators.reductions import stored, wide
from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import Tensor, elementwise, linear, moved


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
    kernel, reach = (_keys, 2) if str(call.attrs.method) == "cubic" else (_hat, 1)
    for offset in range(1 - reach, reach + 1):
        weight = kernel(np.abs(at - low - offset), float(call.attrs.cubic_alpha))
        np.add.at(result, (np.arange(out), np.clip(low + offset, 0, size - 1)), weight)
    return result


def _hat(distance: np.ndarray, _: float) -> np.ndarray:
    return 1 - distance


def _keys(distance: np.ndarray, alpha: float) -> np.ndarray:
    """Two cubics that meet at a distance of one pixel."""
    inner, outer = [alpha + 2, -alpha - 3, 0, 1], alpha * np.array([1, -5, 8, -4])
    return np.where(distance <= 1, np.polyval(inner, distance), np.polyval(outer, distance))


@operator("relax.image.resize2d", "relax.image.resize3d", units=4)
def _resize(call: relax.Call, x: Tensor, size: tuple[int, ...]) -> Tensor:
    layout = str(call.attrs.layout)
    order = reorder(layout, "NC" + spatial(layout))
    back = reorder("NC" + spatial(layout), layout)
    weights = [_weights(out, x.shape[order[2 + i]], call) for i, out in enumerate(size)]

    def resize(a: np.ndarray) -> np.ndarray:
        a = a.transpose(order)
        for axis, matrix in enumerate(weights, 2):
            a = np.moveaxis(np.tensordot(a, matrix, (axis, 1)), -1, axis)
        return a.transpose(back)

    scaled = linear(resize, 8, wide(x))
    if str(call.attrs.method) != "nearest_neighbor":
        scaled = _with_slack(scaled, x, max(x.shape))
    return stored(scaled, dtype_of(call))


def _with_slack(result: Tensor, x: Tensor, size: int) -> Tensor:
    """Places between pixels are computed in float32."""
    slack = 2.0**-21 * size * np.abs(x.value).max(initial=0)
    return Tensor.of(result.value, result.error + slack, result.dtype)


@operator("relax.image.affine_grid", units=2)
def _affine_grid(call: relax.Call, theta: Tensor, size: tuple[int, int]) -> Tensor:
    height, width = size
    aligned = bool(call.attrs.align_corners)
    rows, columns = ((2 * np.arange(n) - (n - 1)) / (max(n - 1, 1) if aligned else n) for n in size)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    base = Tensor.of(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), 2.0**-22, "float32")
    grid = linear(np.matmul, 3, wide(theta), base)
    return stored(moved(lambda a: a.reshape(-1, 2, height, width), grid), dtype_of(call))


@operator("relax.image.grid_sample", units=2)
def _grid_sample(call: relax.Call, x: Tensor, grid: Tensor) -> Tensor:
    """Between pixels, bilinearly; what is outside of the image is 0. A result moves with its place as pixels differ."""
    sizes = np.array(x.shape[:1:-1])[None, :, None, None]  # width, height
    aligned = bool(call.attrs.align_corners)
    at = (grid.value + 1) / 2 * (sizes - 1) if aligned else ((grid.value + 1) * sizes - 1) / 2
    low = np.floor(at).astype(int)
    result = np.zeros((*x.shape[:2], *grid.shape[2:]))
    error = np.zeros(result.shape)
    for offset in np.ndindex(2, 2):
        steps = np.array(offset)[None, :, None, None]
        place, weight = low + steps, np.where(steps == 1, at - low, 1 - (at - low)).prod(1)
        inside = ((place >= 0) & (place < sizes)).all(1)
        column, row = np.moveaxis(np.clip(place, 0, sizes - 1), 1, 0)
        for batch in range(x.shape[0]):
            here = weight[batch] * inside[batch]
            result[batch] += x.value[batch][:, row[batch], column[batch]] * here
            error[batch] += x.error[batch][:, row[batch], column[batch]] * here
    drift = (grid.error * sizes / 2 + 2.0**-23 * sizes).sum(1, keepdims=True)
    return Tensor.of(result, error + 2 * drift * np.abs(x.value).max(initial=0), dtype_of(call))


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
