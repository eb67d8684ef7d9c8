"""`paddle.nn.functional`: the losses, of variables of a program."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.paddle.static.program import Variable
from autocast.errors import UnsupportedError
from autocast.training import MSE, CrossEntropy, Loss, SmoothL1

__all__ = ["cross_entropy", "mse_loss", "smooth_l1_loss"]


def cross_entropy(
    input: Variable,
    label: Variable,
    weight: None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
) -> Variable:
    """Cross-entropy of logits (N, classes) and labels: int64 of shape (N, 1) or (N,), or probabilities (`soft_label`).

    Raises
    ------
    UnsupportedError
        An argument asks for what `autocast.training.CrossEntropy` has not.
    """
    for name, got, expected in (("weight", weight, None), ("axis", axis, -1), ("use_softmax", use_softmax, True)):
        if got != expected:
            raise UnsupportedError(
                f"cross_entropy: got {name}={got!r}, expected {name}={expected!r}; a Loss of your own may compute "
                "anything, for autocast.training.Trainer"
            )
    kind = "probabilities" if soft_label else "indices"
    loss = CrossEntropy(
        kind=kind, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing or 0.0
    )
    return _loss(loss, input, label)


def mse_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """The mean (or sum) of the squares of differences."""
    return _loss(MSE(reduction=reduction), input, label)


def smooth_l1_loss(input: Variable, label: Variable, reduction: str = "mean", delta: float = 1.0) -> Variable:
    """Half of the square of a difference below `delta`, linear beyond, as Paddle has it: `delta` times ours."""
    if delta != 1.0:
        raise UnsupportedError(f"smooth_l1_loss: got delta={delta}, expected 1.0; scale the inputs instead")
    return _loss(SmoothL1(reduction=reduction), input, label)


def _loss(loss: Loss, input: Variable, label: Variable) -> Variable:
    return input.program.add_loss(loss, input, label)


__getattr__ = named(__name__, __all__, "layers are those of a torch module: static.nn.torch_module(module, *inputs)")
