"""Training: gradients, losses, optimizers, and the step that puts them together."""

from __future__ import annotations

from autocast.training.differentiate import differentiate

__all__ = ["differentiate"]
