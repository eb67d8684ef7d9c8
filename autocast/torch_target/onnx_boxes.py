"""Regions and boxes in ONNX: `RoiAlign`, `MaxRoiPool` and `NonMaxSuppression`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autocast.errors import UnsupportedError
from autocast.torch_target.rows.boxes import ROI_ALIGN, ROI_POOL, SUPPRESS


def box_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write our operators, in the operators `op` of an opset."""

    def numbers(*values: int) -> Any:
        return op.Constant(value_ints=values)

    def columns(tensor: Any, first: int, end: int) -> Any:
        return op.Slice(tensor, numbers(first), numbers(end), numbers(1))

    def roi_align(
        data: Any, rois: Any, size: Sequence[int], scale: float, samples: int, aligned: bool, largest: bool
    ) -> Any:
        if largest:
            raise UnsupportedError(
                "to_onnx: vision.roi_align has mode='max', which is another maximum in ONNX: of weighted neighbours, "
                "and not of samples; expected mode='avg'"
            )
        corners, images = columns(rois, 1, 5), op.Cast(op.Squeeze(columns(rois, 0, 1), numbers(1)), to=7)  # int64
        if aligned:  # ONNX then takes half a pixel off
            corners = op.Add(corners, op.CastLike(op.Constant(value_float=0.5 / scale), corners))
        return op.RoiAlign(
            data,
            corners,
            images,
            output_height=size[0],
            output_width=size[1],
            sampling_ratio=max(samples, 0),
            spatial_scale=scale,
            coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        )

    def roi_pool(data: Any, rois: Any, size: Sequence[int], scale: float) -> Any:
        return op.MaxRoiPool(data, rois, pooled_shape=list(size), spatial_scale=scale)

    def suppress(boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, centred: bool) -> Any:
        """ONNX's rows are (image, class, box), those of a class together: which of its rows one is, is its place."""
        kept = op.NonMaxSuppression(boxes, scores, most, overlap, least, center_point_box=int(centred))
        classes = op.Shape(scores, start=1, end=2)
        group = op.Add(op.Mul(columns(kept, 0, 1), classes), columns(kept, 1, 2))  # (rows, 1)
        earlier = op.ReduceSum(op.Cast(op.Less(op.Transpose(group, perm=[1, 0]), group), to=7), numbers(1), keepdims=1)
        rows = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(kept, start=0, end=1), numbers(0)), 1), numbers(1))
        places = op.Concat(columns(kept, 0, 2), op.Sub(rows, earlier), axis=1)
        empty = op.Expand(numbers(-1), op.Shape(scores))
        return op.ScatterND(empty, places, op.Squeeze(columns(kept, 2, 3), numbers(1)))

    return {ROI_ALIGN: roi_align, ROI_POOL: roi_pool, SUPPRESS: suppress}
