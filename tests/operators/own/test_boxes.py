"""Non-maximum suppression beside the definition, written out: kernels and torch's row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

import autocast
from autocast import amp, vm
from autocast.errors import IllFormedModuleError
from autocast.operators import own
from tests.fuzz.generator import parse


def _corners(box: np.ndarray, centred: bool) -> tuple[float, float, float, float]:
    a, b, c, d = map(np.float32, box)
    if centred:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return min(a, c), min(b, d), max(a, c), max(b, d)


def _share(one: np.ndarray, other: np.ndarray, centred: bool) -> float:
    p, q = _corners(one, centred), _corners(other, centred)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (p, q)]
    sides = [min(p[axis + 2], q[axis + 2]) - max(p[axis], q[axis]) for axis in (0, 1)]
    if min(*sides, *areas) <= 0:
        return 0.0
    return float(sides[0] * sides[1] / (areas[0] + areas[1] - sides[0] * sides[1]))


def by_definition(
    boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least: float, centred: bool = False
) -> np.ndarray:
    order = np.full(scores.shape, -1)
    for image, class_ in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        waiting = [number for number, score in enumerate(scores[image, class_]) if score > least]
        for number in sorted(waiting, key=lambda n: (-scores[image, class_, n], n)):
            shares = [_share(boxes[image, other], boxes[image, number], centred) for other in kept]
            if len(kept) < most and not any(share > overlap for share in shares):
                kept.append(number)
        order[image, class_, : len(kept)] = kept
    return order


def _model(boxes: str = "(b, n, 4)", scores: str = "(b, c, n)", centred: int = 0, dtype: str = "float32") -> Any:
    """With dynamic sizes, unless `boxes` and `scores` say others."""
    names = "".join(f"    {name} = T.int64()\n    " for name in "bcn" if name in boxes + scores)
    sizes = [shape.replace("b", '"b"').replace("c", '"c"').replace("n", '"n"') for shape in (boxes, scores)]
    return autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f'    def main(boxes: R.Tensor({sizes[0]}, "{dtype}"), scores: R.Tensor({sizes[1]}, "{dtype}"), '
            'most: R.Tensor((1,), "int64"), overlap: R.Tensor((1,), "float32"), least: R.Tensor((1,), "float32")):\n'
            f"    {names}    y = R.vision.suppress(boxes, scores, most, overlap, least, centred={centred})\n"
            "        return y\n"
        )
    )


def _inputs(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least: float) -> tuple[np.ndarray, ...]:
    return boxes, scores, np.array([most]), np.array([overlap], "float32"), np.array([least], "float32")


@pytest.fixture(scope="module")
def dynamic() -> dict[bool, tuple[Any, Any]]:
    """Our kernel and torch's operators, by whether boxes are given by their centres."""
    models = {centred: _model(centred=int(centred)) for centred in (False, True)}
    return {centred: (vm.compile(model), autocast.to_torch(model)) for centred, model in models.items()}


@given(st.data())
def test_boxes_are_kept_by_the_definition(dynamic: dict[bool, tuple[Any, Any]], data: st.DataObject) -> None:
    batch, classes, count = (data.draw(st.integers(0, most)) for most in (2, 3, 9))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    centred = data.draw(st.booleans())
    boxes = generator.integers(0, 5, (batch, count, 4)).astype("float32")  # many of no area, and of the same
    scores = generator.choice(np.float32([0, 0.25, 0.5, 1, -1, np.nan, np.inf, -np.inf]), (batch, classes, count))
    limits = (
        data.draw(st.sampled_from([0, 1, 2, 100, -1, 2**40])),
        data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        data.draw(st.sampled_from([-math.inf, 0.0, 0.25])),
    )
    expected = by_definition(boxes, scores, *limits, centred)
    kernel, row = dynamic[centred]
    inputs = _inputs(boxes, scores, *limits)
    np.testing.assert_array_equal(kernel(*inputs), expected)
    np.testing.assert_array_equal(row(*map(torch.from_numpy, inputs)).numpy(), expected)


def test_many_boxes_of_many_classes(dynamic: dict[bool, tuple[Any, Any]]) -> None:
    generator = np.random.default_rng(0)
    corners = generator.random((2, 300, 2), "float32")
    boxes = np.concatenate([corners, corners + generator.random((2, 300, 2), "float32") / 3], 2)
    scores = generator.random((2, 7, 300), "float32")
    inputs = _inputs(boxes, scores, 50, 0.5, 0.1)
    expected = by_definition(boxes, scores, 50, 0.5, 0.1)
    assert (expected >= 0).sum() > 500
    for run in dynamic[False]:
        np.testing.assert_array_equal(np.asarray(run(*map(torch.from_numpy, inputs))), expected)


def test_scores_are_compared_in_full_precision() -> None:
    model = amp.autocast(_model("(1, 2, 4)", "(1, 1, 2)", dtype="bfloat16"))
    assert str(model.main.params[0].ty.dtype) == "bfloat16"
    boxes = torch.tensor([[[0.0, 0, 1, 1], [5, 5, 6, 6]]], dtype=torch.bfloat16)
    scores = torch.tensor([[[0.5, 0.75]]], dtype=torch.bfloat16)
    order = model(boxes, scores, torch.tensor([2]), torch.tensor([0.5]), torch.tensor([0.5 - 1e-6]))
    assert order.tolist() == [[[1, 0]]]


def test_what_is_no_box_is_refused() -> None:
    def variable(*shape: int, dtype: str = "float32") -> relax.Var:
        return relax.Var("x", relax.TensorType(shape, dtype))

    limits = variable(1, dtype="int64"), variable(1), variable(1)
    for boxes, scores in (
        (variable(1, 2, 5), variable(1, 1, 2)),
        (variable(2, 4), variable(1, 1, 2)),
        (variable(1, 2, 4), variable(1, 2)),
        (variable(1, 2, 4), variable(1, 1, 2, dtype="float64")),
    ):
        with pytest.raises(IllFormedModuleError, match=r"vision\.suppress: got .*expected boxes of shape"):
            relax.BlockBuilder().normalize(own.suppress(boxes, scores, *limits, centred=0))
