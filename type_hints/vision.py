"""Images and boxes: pixels may be rounded, coordinates may not."""

from __future__ import annotations

from type_hints.helpers import follow, full
from type_hints.registry import rule

_PIXELS = "weighted averages of neighbours lie within their range; coordinates are computed in float32"
_COORDINATES = "holds coordinates: above 256 a bfloat16 skips whole pixels"
_SCORES = "compares scores and overlaps of boxes: rounding changes which survive"

RULES = (
    rule("relax.image.resize2d", follow(1), why=_PIXELS),
    rule("relax.image.resize3d", follow(1), why=_PIXELS),
    rule("relax.image.affine_grid", full(1), why=_COORDINATES),
    rule("relax.image.grid_sample", full(2), why=f"the grid {_COORDINATES}; data agrees with it"),
    rule("relax.vision.roi_align", full(2), why=f"each region {_COORDINATES}; data agrees with it"),
    rule("relax.vision.roi_pool", full(2), why=f"each region {_COORDINATES}; data agrees with it"),
    rule("relax.vision.multibox_transform_loc", full(3), why=f"each anchor {_COORDINATES}; TVM wants one dtype"),
    rule("relax.vision.get_valid_counts", full(1), why=_SCORES),
    rule("relax.vision.non_max_suppression", full(1), why=_SCORES),
    rule("relax.vision.all_class_non_max_suppression", full((0, 1, 3, 4)), why=_SCORES),
    rule("relax.vision.suppress", full((0, 1, 3, 4)), why=_SCORES),
)
