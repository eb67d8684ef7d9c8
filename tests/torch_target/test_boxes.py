"""Regions and boxes: torch's operators beside our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autocast
from autocast import vm
from tests.fuzz.generator import parse


def _both(expression: str, **operands: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """What our kernels and torch's operators compute."""
    types = {
        name: f'R.Tensor({tuple(x.shape)}, "{str(x.dtype).removeprefix("torch.")}")' for name, x in operands.items()
    }
    inputs = ", ".join(f"{name}: {type}" for name, type in types.items())
    model = autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f"    def main({inputs}):\n        y = {expression}\n        return y\n"
        )
    )
    results = [run(*operands.values()) for run in (vm.compile(model), autocast.to_torch(model))]
    ours, torchs = ([*result] if isinstance(result, tuple) else [result] for result in results)
    return ours, torchs


def _regions(count: int, extent: float) -> torch.Tensor:
    """(image, x, y, x, y): inside, across an edge, outside, of no size, and the wrong way around."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand((count, 2), generator=generator) * extent
    sizes = torch.rand((count, 2), generator=generator) * extent
    images = torch.randint(0, 2, (count, 1), generator=generator).float()
    special = torch.tensor([[0, -9, -9, -4, -4], [1, 3, 3, 3, 3], [0, 9, 9, 2, 2], [5, 0, 0, 40, 40], [-1, 1, 1, 5, 5]])
    return torch.cat([torch.cat([images, corners, corners + sizes], 1), special])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("options", ["sample_ratio=2", "sample_ratio=-1", "sample_ratio=3, aligned=True"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_sampled_as_by_our_kernels(layout: str, options: str, mode: str) -> None:
    data = torch.randn((2, 3, 9, 11) if layout == "NCHW" else (2, 9, 11, 3))
    expression = f'R.vision.roi_align(data, rois, (3, 2), 0.5, {options}, layout="{layout}", mode="{mode}")'
    (ours,), (torchs,) = _both(expression, data=data, rois=_regions(20, 16))
    torch.testing.assert_close(torchs, ours, rtol=1e-4, atol=1e-5)


def test_regions_are_pooled_as_by_our_kernels() -> None:
    data = torch.randn(2, 3, 9, 11)
    (ours,), (torchs,) = _both("R.vision.roi_pool(data, rois, (3, 2), 0.5)", data=data, rois=_regions(20, 16))
    torch.testing.assert_close(torchs, ours, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", ["", "clip=True, threshold=0.3", "keep_background=False, apply_softmax=False, threshold=-0.5"]
)
def test_anchors_are_decoded_as_by_our_kernels(options: str) -> None:
    expression = f"R.vision.multibox_transform_loc(scores, offsets, anchors, {options})"
    anchors = torch.rand(1, 6, 4)
    ours, torchs = _both(expression, scores=torch.randn(2, 4, 6), offsets=torch.randn(2, 24), anchors=anchors)
    for got, expected in zip(torchs, ours, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", ["", "score_threshold=0.5, id_index=-1", "score_threshold=0.2, score_index=3"])
def test_boxes_of_enough_score_come_first_as_by_our_kernels(options: str) -> None:
    data = torch.from_numpy(np.random.default_rng(0).choice(np.float32([-1, 0, 0.25, 0.5, 1, np.nan]), (3, 7, 6)))
    ours, torchs = _both(f"R.vision.get_valid_counts(data, {options})", data=data)
    for got, expected in zip(torchs, ours, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kept", ["", "return_indices=False", "return_indices=False, invalid_to_bottom=True"])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "max_output_size=3, top_k=6",
        "force_suppress=True, iou_threshold=0.2",
        "soft_nms_sigma=0.5",
        "soft_nms_sigma=0.1, iou_threshold=0.3, score_threshold=0.25, id_index=-1, max_output_size=5",
        "soft_nms_sigma=2, iou_threshold=1, score_threshold=0.1, top_k=6",
    ],
)
def test_boxes_are_suppressed_as_by_our_kernels(options: str, kept: str) -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 2, (3, 12, 1), generator=generator)
    corners, sizes, scores = (torch.rand(3, 12, columns, generator=generator) for columns in (2, 2, 1))
    data = torch.cat([classes, (scores * 4).round() / 4 - 0.25, corners, corners + sizes / 2], 2)
    counts, indices = torch.tensor([12, 5, 0], dtype=torch.int32), torch.arange(36, dtype=torch.int32).reshape(3, 12)
    written = ", ".join(filter(None, (options, kept)))
    expression = f"R.vision.non_max_suppression(data, counts, indices, {written})"
    ours, torchs = _both(expression, data=data, counts=counts, indices=indices)
    for got, expected in zip(torchs, ours, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6 if "sigma" in options else 0, atol=0)
