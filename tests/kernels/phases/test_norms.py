"""Normalization over any axes and in any dtype, against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tvm import relax

from tests.kernels.modules import EPSILON, error, module, random, run

nn = relax.op.nn


def _normalized(x: np.ndarray, axes: tuple[int, ...], centered: bool) -> np.ndarray:
    x = x.astype("float64")
    x = x - x.mean(axes, keepdims=True) if centered else x
    return x / np.sqrt(np.square(x).mean(axes, keepdims=True) + 1e-5)


def _along(vector: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """Its dimensions, which are `axes` of the data in their order, where the data has them."""
    moved = vector.astype("float64").transpose(np.argsort(axes))
    return moved.reshape([vector.shape[axes.index(axis)] if axis in axes else 1 for axis in range(rank)])


_AXES = [(2,), (1,), (0,), (0, 1), (0, 2), (2, 1), (2, 0), (0, 1, 2)]
_SOME_AXES = [(2,), (0,), (0, 2), (2, 1)]  # for what is computed as float32 is, or not by kernels of ours


@pytest.mark.parametrize(
    ("axes", "dtype"),
    [*product(_AXES, ("float32", "bfloat16")), *product(_SOME_AXES, ("float64", "float16"))],
    ids=str,
)
def test_norms_over_any_axes(axes: tuple[int, ...], dtype: str) -> None:
    shape = (11, 5, 7)

    def body(x: relax.Expr, scale: relax.Expr, offset: relax.Expr) -> relax.Expr:
        negative = [axis - len(shape) for axis in axes]
        return relax.Tuple(
            [
                nn.layer_norm(x, scale, offset, axes=list(axes), epsilon=1e-5),
                nn.layer_norm(x, relax.op.exp(scale), offset, axes=negative, epsilon=1e-5, center=False),
                nn.rms_norm(x, scale, axes=negative, epsilon=1e-5),
            ]
        )

    sizes = [shape, *[tuple(shape[axis] for axis in axes)] * 2]
    x, scale, offset = (random(size, dtype, seed) for seed, size in enumerate(sizes))
    got = run(module(body, *[(size, dtype) for size in sizes]), x, scale, offset)
    layer, rms = (_normalized(x, axes, centered) for centered in (True, False))
    vectors = (
        _along(scale, axes, 3),
        _along(np.exp(scale.astype("float64")).astype(dtype if dtype != "bfloat16" else scale.dtype), axes, 3),
    )
    expected = [layer * vectors[0] + _along(offset, axes, 3), layer * vectors[1], rms * vectors[0]]
    for one, truth in zip(got, expected, strict=True):
        assert str(one.dtype) == dtype
        assert error(one, truth) < 8 * EPSILON.get(dtype, 1e-16)


@pytest.mark.parametrize("name", ["instance", "group"])
def test_norms_of_channels_in_float64(name: str) -> None:
    def body(x: relax.Expr, scale: relax.Expr, offset: relax.Expr) -> relax.Expr:
        if name == "instance":
            return nn.instance_norm(x, scale, offset, channel_axis=1, axes=[2, 3], epsilon=1e-5)
        return nn.group_norm(x, scale, offset, num_groups=2, channel_axis=1, axes=[2, 3], epsilon=1e-5)

    x, scale, offset = random((2, 6, 3, 5), "float64", 0), random((6,), "float64", 1), random((6,), "float64", 2)
    (got,) = run(module(body, (x.shape, "float64"), ((6,), "float64"), ((6,), "float64")), x, scale, offset)
    groups = 6 if name == "instance" else 2
    normal = _normalized(x.reshape(2, groups, -1), (2,), centered=True).reshape(x.shape)
    expected = normal * scale[:, None, None] + offset[:, None, None]
    np.testing.assert_allclose(got, expected, atol=1e-14, rtol=0)
