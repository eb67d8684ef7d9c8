"""Training: `init` says how, `init_trainer` makes a Trainer do so. A step of it scales its loss by itself.

Source: MXNet's documentation of `mxnet.amp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from autocast.compat.mxnet.amp.lists import Conditions, Lists, Names, check_target
from autocast.errors import PolicyError, TrainingError, UnsupportedError
from autocast.training import DynamicLossScaling, Trainer

#: How MXNet's loss scaler begins and goes on; it stops at 2 ** 24, ours where a product overflows.
_SCALING = DynamicLossScaling(
    init_loss_scaling=2.0**16, incr_every_n_steps=2000, decr_every_n_nan_or_inf=1, incr_ratio=2.0, decr_ratio=0.5
)


class _Settings(NamedTuple):
    target_dtype: Any
    lists: Lists


_settings: _Settings | None = None


def init(
    target_dtype: Any = "float16",
    target_precision_ops: Names = None,
    conditional_fp32_ops: Conditions = None,
    fp32_ops: Names = None,
    layout_optimization: bool = False,
) -> None:
    """Say how trainers train that are given to `init_trainer` from here on.

    Parameters
    ----------
    target_dtype : str, or dtype of numpy or torch
        float16 or bfloat16.
    target_precision_ops, conditional_fp32_ops, fp32_ops
        What `convert_hybrid_block` calls target_dtype_ops, conditional_fp32_ops and fp32_ops.
    layout_optimization : bool
        Either: kernels choose their layouts in any case.

    Raises
    ------
    PolicyError
        `target_dtype` is neither of these.
    """
    global _settings
    check_target("init", target_dtype)
    _settings = _Settings(target_dtype, Lists(target_precision_ops, fp32_ops, conditional_fp32_ops, ()))


def init_trainer(optimizer_or_trainer: Trainer) -> None:
    """Make a Trainer train in mixed precision, as `init` said, with a loss that is scaled dynamically.

    Parameters
    ----------
    optimizer_or_trainer : autocast.training.Trainer
        One that has not trained. Its `loss_scale` begins at 65536, is halved by each step whose gradients are not
        finite, and doubled after 2000 others.

    Raises
    ------
    PolicyError
        `init` was not called; or the Trainer is in mixed precision already.
    TypeError
        It is no Trainer: optimizers alone do not train.
    TrainingError
        It has trained.
    """
    trainer = _checked("init_trainer", optimizer_or_trainer)
    if _settings is None:
        raise PolicyError("init_trainer: amp.init() was not called, expected it to say what is low; call it first")
    if trainer.amp is not None:
        raise PolicyError(
            f"init_trainer: got a Trainer with amp={str(trainer.amp)!r}, expected one in the precision of its model; "
            "leave out either its amp= or init_trainer"
        )
    policy = _settings.lists.policy(trainer.model.mod, _settings.target_dtype, offline=False)
    trainer.set_amp(policy, loss_scaling=_SCALING)


@contextmanager
def scale_loss(loss: Any, optimizer_or_trainer: Trainer) -> Iterator[Any]:
    """The loss times the Trainer's scale, for those who look at it: `Trainer.step` scales what it differentiates.

    Parameters
    ----------
    loss : number, numpy.ndarray or torch.Tensor, or a list of them
        Such as `Trainer.step` returns.
    optimizer_or_trainer : autocast.training.Trainer

    Raises
    ------
    UnsupportedError
        The loss is a torch tensor that requires gradients, which the Trainer would not see.
    TrainingError
        The Trainer does not scale its loss.
    TypeError
        It is no Trainer.
    """
    trainer = _checked("scale_loss", optimizer_or_trainer)
    losses = loss if isinstance(loss, list | tuple) else [loss]
    if any(getattr(each, "requires_grad", False) for each in losses):
        raise UnsupportedError(
            "scale_loss: got a loss that requires gradients of torch, expected a number; trainer.step(batch) "
            "differentiates, scales and updates: call it in place of the block"
        )
    if trainer.loss_scaling is None:
        raise TrainingError(
            f"scale_loss: {trainer!r} does not scale its loss; call amp.init_trainer(trainer) before it trains"
        )
    scaled = [each * trainer.loss_scale for each in losses]
    yield scaled if isinstance(loss, list | tuple) else scaled[0]


def unscale(optimizer_or_trainer: Trainer) -> NoReturn:
    """Nothing: gradients exist within a step alone, which has unscaled them before it clips.

    Raises
    ------
    UnsupportedError
        Always, for a Trainer; it says what to do in place of what gradients were unscaled for.
    TypeError
        It is no Trainer.
    """
    _checked("unscale", optimizer_or_trainer)
    raise UnsupportedError(
        "unscale: gradients are unscaled within trainer.step(batch), before they are clipped, and exist nowhere else; "
        "try Trainer(..., clip_norm=1.0) to clip them"
    )


def _checked(where: str, trainer: object) -> Trainer:
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"{where}: got {type(trainer).__name__}, expected an autocast.training.Trainer, which holds a model, its "
            "loss and its optimizer"
        )
    return trainer
