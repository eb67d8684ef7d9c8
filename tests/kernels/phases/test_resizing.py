"""Resizing, and the places and weights that kernels, gradients and the torch target share, against torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tvm import relax

from autocast import from_relax, to_torch
from autocast.operators.resizing import resizing_matrix
from tests.kernels.modules import module, run

_MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_ROUNDING = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "")
_WAYS = [
    *zip(
        itertools.repeat("nearest_neighbor"),
        (*_MODES, "tf_half_pixel_for_nn"),
        reversed(_ROUNDING),
        itertools.repeat(0),
    ),
    *itertools.product(["nearest_neighbor"], ["asymmetric"], _ROUNDING, [0]),
    *itertools.product(["linear"], _MODES, ["round"], [0]),
    *itertools.product(["cubic"], _MODES, ["round"], [0]),
    ("cubic", "half_pixel", "round", 1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
def test_every_way_to_resize_is_a_product_with_its_matrices(method: str, dtype: str) -> None:
    ways = [way for way in _WAYS if way[0] == method]
    sizes = ((5, 7), (9, 4)), ((6, 4), (1, 3)), ((8, 9), (4, 27))
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 9)).astype(dtype)

    def body(*images: relax.Expr) -> relax.Expr:
        return relax.Tuple(
            [_resized(image, out, *way) for image, (_, out) in zip(images, sizes, strict=True) for way in ways]
        )

    mod = module(body, *[((1, 2, *size), dtype) for size, _ in sizes])
    images = [x[:, :, :height, :width].copy() for (height, width), _ in sizes]
    ours = run(mod, *images)
    by_torch = to_torch(from_relax(mod))(*map(torch.from_numpy, images))
    expected = []
    for image, (size, out) in zip(images, sizes, strict=True):
        for way in ways:
            attributes = _resized(relax.const(image), out, *way).attrs
            rows, columns = (resizing_matrix(attributes, *pair) for pair in zip(size, out, strict=True))
            expected.append(np.einsum("ij,bcjk,lk->bcil", rows, image.astype("float64"), columns))
    atol = {"float32": 2e-5, "float64": 1e-13}[dtype]
    for one, other, truth in zip(ours, by_torch, expected, strict=True):
        np.testing.assert_allclose(one, truth, atol=atol, rtol=0)
        np.testing.assert_allclose(other, truth, atol=atol, rtol=0)


def _resized(x: relax.Expr, size: tuple[int, int], method: str, mode: str, rounding: str, exclude: int) -> relax.Expr:
    return relax.op.image.resize2d(
        x,
        size,
        layout="NCHW",
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
        cubic_alpha=-0.75,
        cubic_exclude=exclude,
    )


@pytest.mark.parametrize(("method", "mode"), [("nearest_neighbor", "nearest"), ("linear", "trilinear")])
def test_volumes_of_float64_are_those_of_torch(method: str, mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5, 2))
    places = {"nearest": "asymmetric", "trilinear": "half_pixel"}[mode]

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.image.resize3d(
            x, (6, 7, 5), None, "NDHWC", method, coordinate_transformation_mode=places, rounding_method="floor"
        )

    (got,) = run(module(body, (x.shape, "float64")), x)
    expected = F.interpolate(torch.from_numpy(x).movedim(-1, 1), (6, 7, 5), mode=mode).movedim(1, -1)
    np.testing.assert_allclose(got, expected, atol=1e-14, rtol=0)


def test_integers_beyond_those_of_float32_are_repeated_as_they_are() -> None:
    x = (2**40 + np.arange(12)).reshape(1, 1, 3, 4)

    def body(x: relax.Expr) -> relax.Expr:
        places = {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}
        return relax.op.image.resize2d(x, (6, 8), layout="NCHW", method="nearest_neighbor", **places)

    (got,) = run(module(body, (x.shape, "int64")), x)
    np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(2, 3))
