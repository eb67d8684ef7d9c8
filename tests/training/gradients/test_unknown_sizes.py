"""Matrices of axes whose sizes are known at run time only are those of known sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.operators.resizing import resizing_matrix
from autocast.training.gradients.registry import Backward
from autocast.training.gradients.unknown_sizes import resizing
from tests.kernels.modules import run

_MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_ROUNDINGS = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "")
#: Coordinates, roundings and borders, whose code has nothing to do with each other: all of each, not of all pairs.
_WAYS = {
    "nearest_neighbor": [
        *zip((*_MODES, "tf_half_pixel_for_nn"), reversed(_ROUNDINGS), itertools.repeat(0)),
        *itertools.product(["asymmetric"], _ROUNDINGS, [0]),
    ],
    "linear": list(itertools.product(_MODES, ["round"], [0])),
    "cubic": [("half_pixel", "round", 1), ("align_corners", "round", 0)],
}


@pytest.mark.parametrize("method", _WAYS)
def test_matrices_of_every_way_to_resize_are_those_of_known_sizes(method: str) -> None:
    ways = _WAYS[method]
    height, width = (tvm.tirx.Var(name, "int64") for name in ("height", "width"))
    x = relax.Var("x", relax.TensorType((1, 1, height, width), "float64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            matrices = []
            for mode, rounding, exclude in ways:
                resized = builder.emit(
                    relax.op.image.resize2d(
                        x,
                        relax.ShapeExpr([5, 2 * width]),
                        layout="NCHW",
                        method=method,
                        coordinate_transformation_mode=mode,
                        rounding_method=rounding,
                        cubic_exclude=exclude,
                    )
                )
                call = builder.lookup_binding(resized)
                backward = Backward(call, resized, None, (True, False), builder.emit)
                matrices.append(resizing(backward, 2))
                if mode != "pytorch_half_pixel":  # which asks for the number of outputs
                    matrices.append(resizing(backward, 3))
            result = builder.emit_output(relax.Tuple(matrices))
        builder.emit_func_output(result)

    for size in ((7, 4), (1, 1), (5, 9)):
        got = iter(run(builder.get(), np.zeros((1, 1, *size))))
        for mode, rounding, exclude in ways:
            attributes = relax.op.image.resize2d(
                relax.const(np.zeros((1, 1, *size))),
                (5, 2 * size[1]),
                method=method,
                coordinate_transformation_mode=mode,
                rounding_method=rounding,
                cubic_exclude=exclude,
            ).attrs
            pairs = [(size[0], 5), (size[1], 2 * size[1])]
            for pair in pairs if mode != "pytorch_half_pixel" else pairs[:1]:
                np.testing.assert_allclose(next(got), resizing_matrix(attributes, *pair), atol=1e-14, rtol=0)
