"""Images: resizing is a product with a matrix along each axis, and so is its adjoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of
from autocast.operators.resizing import resizing_matrix
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable
from autocast.training.gradients.shapes import known_shape, number
from autocast.training.gradients.unknown_sizes import resizing

#: How often pixels are repeated at most along axes whose sizes are known at run time only, for that to be seen.
_MOST_REPEATED = 8


def along_axes(b: Backward, adjoint: relax.Expr, matrices: Mapping[int, np.ndarray | relax.Expr]) -> relax.Expr:
    """The adjoint of data of which `matrices` (outputs, extent) made the result, one along each axis."""
    rank = int(adjoint.ty.ndim)
    for axis, matrix in matrices.items():
        order = [i for i in range(rank) if i != axis] + [axis]
        last = b.emit(op.permute_dims(adjoint, order)) if axis != rank - 1 else adjoint
        known = isinstance(matrix, np.ndarray)
        product = b.emit(op.matmul(last, relax.const(matrix, dtype_of(adjoint)) if known else matrix))
        adjoint = (
            b.emit(op.permute_dims(product, [order.index(i) for i in range(rank)])) if axis != rank - 1 else product
        )
    return adjoint


def _resize(b: Backward) -> list[Adjoint]:
    data, layout, attributes = b.call.args[0], str(b.call.attrs.layout), b.call.attrs
    shape, out = known_shape(data), known_shape(b.call)
    axes = [place for place, axis in enumerate(layout) if axis not in "NC"]
    if any(float(edge) for edge in attributes.roi) or sorted(layout) != sorted("NCHW"):
        raise GradientError(
            f"layout={layout!r} and roi={list(attributes.roi)}; expected images (N, C, H, W) and no roi"
        )
    factors = [_factor(out[axis], shape[axis]) for axis in axes]
    repeats = str(attributes.method) == "nearest_neighbor" and str(attributes.rounding_method) in ("floor", "")
    if repeats and str(attributes.coordinate_transformation_mode) == "asymmetric" and all(factors):
        mean = op.nn.avg_pool2d(b.adjoint, factors, factors, layout=layout)
        return [mean * number(float(np.prod(factors)), data), None]
    matrices: dict[int, np.ndarray | relax.Expr] = {}
    for axis in axes:
        known = isinstance(shape[axis], int) and isinstance(out[axis], int)
        matrix = resizing_matrix(attributes, shape[axis], out[axis]) if known else resizing(b, axis)
        if matrix is None:
            mode = attributes.coordinate_transformation_mode
            raise GradientError(
                f"coordinate_transformation_mode={mode!r}; expected align_corners, asymmetric or half_pixel"
            )
        matrices[axis] = matrix
    return [along_axes(b, b.adjoint, matrices), None]


def _factor(outputs: Any, extent: Any) -> int:
    """By how much an axis is longer, if it is by a whole number; else 0."""
    if isinstance(outputs, int) and isinstance(extent, int):
        return 0 if outputs % extent else outputs // extent
    proven = tvm.sym.Analyzer().can_prove_equal
    return next((factor for factor in range(1, _MOST_REPEATED + 1) if proven(outputs, extent * factor)), 0)


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
    not_differentiable("relax.vision.suppress", why="numbers of boxes"),
)
