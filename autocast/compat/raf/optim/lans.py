"""RAF's `raf.optim.lans`."""

from __future__ import annotations

from collections.abc import Callable

from autocast import training
from autocast.compat.names import named
from autocast.compat.raf.handle import FrameworkModel, model_of
from autocast.errors import UnsupportedError
from autocast.model import Model
from autocast.testing.training import append_optimizer

__all__ = ["with_lans"]


__getattr__ = named(__name__, __all__, instead={"LANS": "with_lans(lr, betas)(model) trains"})


def with_lans(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    grad_averaging: bool = True,
    mode: bool = True,
    normalize_grad: bool = True,
) -> Callable[[FrameworkModel | Model], FrameworkModel]:
    """What makes of a model with a loss one that trains it by LANS, as its paper has it.

    Raises
    ------
    UnsupportedError
        One of the last four is False, which is another algorithm than the paper's.
    """
    parts = {
        "bias_correction": bias_correction,
        "grad_averaging": grad_averaging,
        "mode": mode,
        "normalize_grad": normalize_grad,
    }
    if left_out := [name for name, value in parts.items() if not value]:
        raise UnsupportedError(
            f"with_lans: {left_out[0]} is {parts[left_out[0]]!r}, expected True, as LANS has it; try "
            "append_loss_n_optimizer(..., optimizer='lamb') for LAMB"
        )
    optimizer = training.LANS(betas=betas, eps=eps, weight_decay=weight_decay)
    return lambda model: FrameworkModel(append_optimizer(model_of(model), optimizer, lr))
