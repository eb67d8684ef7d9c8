"""Images: resizing is a product with a matrix along each axis, and so is its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of, static_shape
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable
from autocast.training.gradients.shapes import number


def along_axes(b: Backward, adjoint: relax.Expr, matrices: Mapping[int, np.ndarray]) -> relax.Expr:
    """The adjoint of data of which `matrices` (outputs, extent) made the result, one along each axis."""
    rank = int(adjoint.ty.ndim)
    for axis, matrix in matrices.items():
        order = [i for i in range(rank) if i != axis] + [axis]
        last = b.emit(op.permute_dims(adjoint, order)) if axis != rank - 1 else adjoint
        product = b.emit(op.matmul(last, relax.const(matrix, dtype_of(adjoint))))
        adjoint = (
            b.emit(op.permute_dims(product, [order.index(i) for i in range(rank)])) if axis != rank - 1 else product
        )
    return adjoint


def _resize(b: Backward) -> list[Adjoint]:
    data, layout, attributes = b.call.args[0], str(b.call.attrs.layout), b.call.attrs
    shape, out = static_shape(data), static_shape(b.call)
    axes = [place for place, axis in enumerate(layout) if axis not in "NC"]
    if shape is None or out is None:
        raise GradientError(f"images of {data.ty.shape}; expected a size that is known now")
    if any(float(edge) for edge in attributes.roi) or sorted(layout) != sorted("NCHW"):
        raise GradientError(
            f"layout={layout!r} and roi={list(attributes.roi)}; expected images (N, C, H, W) and no roi"
        )
    factors = [out[axis] // shape[axis] for axis in axes]
    repeats = str(attributes.method) == "nearest_neighbor" and str(attributes.rounding_method) in ("floor", "")
    repeats = repeats and str(attributes.coordinate_transformation_mode) == "asymmetric"
    if repeats and all(out[axis] == shape[axis] * factor for axis, factor in zip(axes, factors, strict=True)):
        mean = op.nn.avg_pool2d(b.adjoint, factors, factors, layout=layout)
        return [mean * number(float(np.prod(factors)), data), None]
    matrices = {axis: _matrix(attributes, shape[axis], out[axis]) for axis in axes}
    return [along_axes(b, b.adjoint, {axis: m.astype(dtype_of(data)) for axis, m in matrices.items()}), None]


def _matrix(attributes: Any, extent: int, outputs: int) -> np.ndarray:
    """The (outputs, extent) matrix that resizes along one axis."""
    places = _places(str(attributes.coordinate_transformation_mode), extent, outputs)
    method = str(attributes.method)
    if method == "nearest_neighbor":
        rounded = _ROUNDING[str(attributes.rounding_method) or "floor"](places)
        weights = [(rounded, np.ones(outputs))]
    elif method == "linear":
        begin = np.floor(places)
        weights = [(begin, 1 - (places - begin)), (begin + 1, places - begin)]
    else:
        begin = np.floor(places)
        weights = [(begin + tap, _cubic(places - begin - tap, float(attributes.cubic_alpha))) for tap in range(-1, 3)]
    matrix = np.zeros((outputs, extent))
    for source, weight in weights:
        np.add.at(matrix, (np.arange(outputs), np.clip(source, 0, extent - 1).astype(int)), weight)
    if method == "cubic" and int(attributes.cubic_exclude):
        raise GradientError(f"cubic_exclude={attributes.cubic_exclude}; expected 0")
    return matrix


def _places(mode: str, extent: int, outputs: int) -> np.ndarray:
    """Where along the data each output lies."""
    index, scale = np.arange(outputs, dtype=np.float64), extent / outputs
    if mode == "align_corners":
        return index * ((extent - 1) / (outputs - 1) if outputs > 1 else 0.0)
    if mode == "asymmetric":
        return index * scale
    if mode in ("half_pixel", "pytorch_half_pixel"):
        places = (index + 0.5) * scale - 0.5
        return np.zeros(outputs) if mode == "pytorch_half_pixel" and outputs == 1 else places
    raise GradientError(f"coordinate_transformation_mode={mode!r}; expected align_corners, asymmetric or half_pixel")


def _cubic(distance: np.ndarray, alpha: float) -> np.ndarray:
    """The kernel of Keys, "Cubic convolution interpolation", 1981."""
    x = np.abs(distance)
    near = (alpha + 2) * x**3 - (alpha + 3) * x**2 + 1
    far = alpha * x**3 - 5 * alpha * x**2 + 8 * alpha * x - 4 * alpha
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}

_COORDINATES = "a gradient of coordinates is not there; resize with image.resize2d instead"
_BOXES = "chooses boxes: nothing to differentiate; compute the loss from the scores and boxes before it"
_REGIONS = "pooling of regions has no backward kernel; crop with strided_slice and pool with avg_pool2d instead"

RULES = (
    gradient("relax.image.resize2d", _resize, why="the transposed matrices along height and width"),
    not_differentiable("relax.image.resize3d", why="no kernel resizes volumes backwards; resize images"),
    not_differentiable("relax.image.affine_grid", why=_COORDINATES),
    not_differentiable("relax.image.grid_sample", why=_COORDINATES),
    not_differentiable("relax.vision.roi_align", why=_REGIONS),
    not_differentiable("relax.vision.roi_pool", why=_REGIONS),
    not_differentiable("relax.vision.multibox_transform_loc", why=_BOXES),
    not_differentiable("relax.vision.get_valid_counts", why=_BOXES),
    not_differentiable("relax.vision.non_max_suppression", why=_BOXES),
    not_differentiable("relax.vision.all_class_non_max_suppression", why=_BOXES),
)
