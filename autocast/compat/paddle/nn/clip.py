"""What makes gradients shorter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClipGradByGlobalNorm:
    """All gradients are scaled down together so that their norm is at most `clip_norm`."""

    clip_norm: float
