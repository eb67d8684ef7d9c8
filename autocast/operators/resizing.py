"""Where the pixels of a resized image come from, and what each of them weighs: of numpy's arrays and torch's tensors.

What follows `image.resize2d` and `image.resize3d` reads it here: gradients, float64 kernels, the torch target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: Places that rounding has moved off a pixel by less are on it.
_ON_A_PIXEL = 1e-5

#: From places along an axis to numbers of pixels, by names of TVM's `rounding_method`.
_ROUNDING: dict[str, Callable[[Any], Any]] = {
    "floor": lambda at: (at + _ON_A_PIXEL) // 1,
    "ceil": lambda at: -(-(at - _ON_A_PIXEL) // 1),
    "round": lambda at: at.round(),
    "round_prefer_floor": lambda at: -((0.5 - at) // 1),
    "round_prefer_ceil": lambda at: (at + 0.5) // 1,
}


def places(index: Any, extent: Any, outputs: Any, mode: str, *, single: bool | None = None) -> Any:
    """Where along an axis of `extent` pixels the outputs `index` (float64, an array or a tensor) of `outputs` lie.

    `single` says whether there is one output, where `outputs` cannot be asked. None for a mode that places them by
    something else than the two sizes (`tf_crop_and_resize`).
    """
    if single is None:
        single = outputs == 1
    if mode == "align_corners":
        return index * (0.0 if single else (extent - 1) / (outputs - 1))
    if mode == "pytorch_half_pixel" and single:
        return index * 0.0
    scale = extent / outputs
    known = {
        "asymmetric": lambda: index * scale,
        "half_pixel": lambda: (index + 0.5) * scale - 0.5,
        "pytorch_half_pixel": lambda: (index + 0.5) * scale - 0.5,
        "tf_half_pixel_for_nn": lambda: (index + 0.5) * scale,
    }
    return known[mode]() if mode in known else None


def taps(at: Any, extent: Any, attributes: Any) -> list[tuple[Any, Any]]:
    """The pixels, beyond the edges too, that outputs at the places `at` are made of, and the weight of each.

    Cubic weights are those of Keys, "Cubic convolution interpolation", 1981.
    """
    if str(attributes.method) == "nearest_neighbor":
        aligned = str(attributes.coordinate_transformation_mode) == "align_corners"
        rounding = str(attributes.rounding_method) or ("round" if aligned else "floor")
        return [(_ROUNDING[rounding](at), at * 0.0 + 1.0)]
    begin = at // 1
    beyond = at - begin
    if str(attributes.method) == "linear":
        return [(begin, 1 - beyond), (begin + 1, beyond)]
    alpha = float(attributes.cubic_alpha)

    def near(x: Any) -> Any:
        return ((alpha + 2) * x - (alpha + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((alpha * x - 5 * alpha) * x + 8 * alpha) * x - 4 * alpha

    weights = [far(beyond + 1), near(beyond), near(1 - beyond), far(2 - beyond)]
    pixels = [begin + offset for offset in range(-1, 3)]
    if int(attributes.cubic_exclude):
        weights = [w * ((pixel >= 0) & (pixel < extent)) for w, pixel in zip(weights, pixels, strict=True)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        weights = [w / total for w in weights]
    return list(zip(pixels, weights, strict=True))


def resizing_matrix(attributes: Any, extent: int, outputs: int) -> np.ndarray | None:
    """The (outputs, extent) float64 matrix that resizes along one axis; None where `places` has none."""
    at = places(np.arange(outputs, dtype="float64"), extent, outputs, str(attributes.coordinate_transformation_mode))
    if at is None:
        return None
    matrix = np.zeros((outputs, extent))
    for pixel, weight in taps(at, extent, attributes):
        np.add.at(matrix, (np.arange(outputs), np.clip(pixel, 0, extent - 1).astype(int)), weight)
    return matrix
