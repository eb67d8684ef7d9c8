"""TVM's suppression of boxes in each class beside the definition, written out: kernels and torch's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autocast
from autocast import vm
from tests.fuzz.generator import parse
from tests.operators.own.test_boxes import by_definition


def _model(form: str, most: str, sizes: str) -> autocast.Model:
    names = "        b, n = T.int64(), T.int64()\n" if '"n"' in sizes else ""
    batch, count = sizes.split()
    return autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f'    def main(boxes: R.Tensor(({batch}, {count}, 4), "float32"), '
            f'scores: R.Tensor(({batch}, 3, {count}), "float32"), overlap: R.Tensor((), "float32"), '
            'least: R.Tensor((1,), "float32"), most: R.Tensor((1,), "int64")):\n'
            f"{names}        y = R.vision.all_class_non_max_suppression(boxes, scores, {most}, overlap, least, "
            f'output_format="{form}")\n        return y\n'
        )
    )


def _runs(model: autocast.Model) -> list[Any]:
    module = autocast.to_torch(model)
    return [vm.compile(model), lambda *inputs: [part.numpy() for part in module(*map(torch.from_numpy, inputs))]]


def _inputs(batch: int, count: int, least: float) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(count)
    corners = generator.random((batch, count, 2), "float32")
    boxes = np.concatenate([corners, corners + generator.random((batch, count, 2), "float32") / 2], 2)
    scores = generator.standard_normal((batch, 3, count)).astype("float32")
    return boxes, scores, np.array(0.4, "float32"), np.array([least], "float32"), np.array([7])


@pytest.mark.parametrize(("most", "sizes"), [("most", '"b" "n"'), ('R.const(7, "int64")', "2 30")])
@pytest.mark.parametrize("form", ["onnx", "tensorflow"])
def test_boxes_of_each_class_are_kept_by_the_definition(form: str, most: str, sizes: str) -> None:
    runs = _runs(_model(form, most, sizes))
    for batch, count in ((2, 30), (1, 1), (3, 50), (0, 5), (2, 0)) if "n" in sizes else ((2, 30),):
        inputs = _inputs(batch, count, -0.5)
        order = by_definition(*inputs[:2], 7, 0.4, -0.5)
        for run in runs:
            if form == "onnx":
                rows, total = run(*inputs)
                expected = [(*group, n) for group in np.ndindex(batch, 3) for n in order[group] if n >= 0]
                assert (rows.shape, total.tolist()) == ((batch * 3 * count, 3), [len(expected)])
                assert [tuple(row) for row in rows.tolist()] == expected + [(0, 0, 0)] * (len(rows) - len(expected))
                continue
            rows, scores, totals = run(*inputs)
            assert rows.shape[:2] == scores.shape == (batch, 3 * count)
            for image in range(batch):
                kept = [(class_, n) for class_ in range(3) for n in order[image, class_] if n >= 0]
                rest = 3 * count - len(kept)
                assert totals[image] == len(kept)
                assert [tuple(row) for row in rows[image].tolist()] == kept + [(0, 0)] * rest
                of_kept = [inputs[1][image, class_, n] for class_, n in kept]
                np.testing.assert_array_equal(scores[image], np.float32(of_kept + [0] * rest))
