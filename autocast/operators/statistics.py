"""Operators that combine many elements: reductions, scans, norms, pooling, losses; and those on images."""

from __future__ import annotations

import math

from autocast.operators.row import Kind, rows

REDUCTIONS = (
    *rows(Kind.REDUCTION, "sum", channels_last="reduction", of_nothing=0.0),
    *rows(Kind.REDUCTION, "prod", channels_last="reduction", of_nothing=1.0),
    *rows(Kind.REDUCTION, "mean std variance", channels_last="reduction", of_nothing=math.nan),
    *rows(Kind.REDUCTION, "max min", channels_last="reduction"),
    *rows(Kind.REDUCTION, "median"),
    *rows(Kind.REDUCTION, "collapse_sum_like collapse_sum_to", of_nothing=0.0),
)

SCANS = rows(Kind.SCAN, "cumprod cumsum")

NORMALIZATION = (
    *rows(Kind.NORMALIZATION, "collective.batch_norm nn.batch_norm nn.instance_norm nn.layer_norm nn.rms_norm"),
    *rows(Kind.NORMALIZATION, "nn.group_norm nn.log_softmax nn.softmax", channels_last="axis"),
)

POOLING = (
    *rows(
        Kind.POOLING,
        "nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.avg_pool1d nn.avg_pool2d nn.max_pool1d nn.max_pool2d",
        channels_last="axis",
    ),
    *rows(Kind.POOLING, "nn.adaptive_avg_pool3d nn.avg_pool3d nn.max_pool3d"),
)

LOSSES = (
    *rows(Kind.LOSS, "nn.cross_entropy_with_logits", of_nothing=math.nan),
    *rows(Kind.LOSS, "nn.cross_entropy nn.nll_loss"),
)

VISION = (
    *rows(Kind.VISION, "image.resize2d", channels_last="axis"),
    *rows(
        Kind.VISION,
        """
        image.affine_grid image.grid_sample image.resize3d vision.all_class_non_max_suppression vision.get_valid_counts
        vision.multibox_transform_loc vision.non_max_suppression vision.roi_align vision.roi_pool
        """,
    ),
    *rows(Kind.DEFINED, "vision.suppress"),
)

ROWS = (*REDUCTIONS, *SCANS, *NORMALIZATION, *POOLING, *LOSSES, *VISION)
