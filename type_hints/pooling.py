"""Pooling over windows."""

from __future__ import annotations

from type_hints.helpers import follow
from type_hints.registry import rule

_MAXIMUM = "gives back one element of each window"
_AVERAGE = "the average of a window lies within its range, and the kernel adds it up in float32"

RULES = (
    rule("relax.nn.max_pool1d", follow(1), why=_MAXIMUM),
    rule("relax.nn.max_pool2d", follow(1), why=_MAXIMUM),
    rule("relax.nn.max_pool3d", follow(1), why=_MAXIMUM),
    rule("relax.nn.avg_pool1d", follow(1), why=_AVERAGE),
    rule("relax.nn.avg_pool2d", follow(1), why=_AVERAGE),
    rule("relax.nn.avg_pool3d", follow(1), why=_AVERAGE),
    rule("relax.nn.adaptive_avg_pool1d", follow(1), why=_AVERAGE),
    rule("relax.nn.adaptive_avg_pool2d", follow(1), why=_AVERAGE),
    rule("relax.nn.adaptive_avg_pool3d", follow(1), why=_AVERAGE),
)
