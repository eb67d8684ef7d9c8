"""RAF's `raf.optim.sgd`."""

from __future__ import annotations

from collections.abc import Callable

from autocast import training
from autocast.compat.names import named
from autocast.compat.raf.handle import FrameworkModel, model_of
from autocast.model import Model
from autocast.testing.training import append_optimizer

__all__ = ["with_sgd"]


__getattr__ = named(__name__, __all__, instead={"SGD": "with_sgd(learning_rate, momentum)(model) trains"})


def with_sgd(learning_rate: float = 0.1, momentum: float = 0.01) -> Callable[[FrameworkModel | Model], FrameworkModel]:
    """What makes of a model with a loss one that trains it: it takes (dy, inputs..., labels) and gives the loss."""
    return lambda model: FrameworkModel(
        append_optimizer(model_of(model), training.SGD(momentum=momentum), learning_rate)
    )
