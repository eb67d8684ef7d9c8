"""`paddle.optimizer`: optimizers that hold their learning rate, and minimize the loss of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from autocast import training
from autocast.compat.names import named
from autocast.compat.paddle.nn.clip import ClipGradByGlobalNorm
from autocast.compat.paddle.static.program import Program, Variable
from autocast.policy import Policy

__all__ = ["SGD", "Adam", "AdamW", "Lamb", "Momentum", "Optimizer"]

#: A number, or a function of the steps done: one of `autocast.training`'s schedules, say.
Rate: TypeAlias = float | Callable[[int], float]


class Optimizer:
    """One of `autocast.training`'s, with its learning rate.

    Attributes
    ----------
    rule : autocast.training.Optimizer
    multi_precision : bool
        Whether pure float16 keeps float32 masters of parameters.
    """

    def __init__(
        self,
        rule: training.Optimizer,
        learning_rate: Rate,
        grad_clip: ClipGradByGlobalNorm | None,
        multi_precision: bool,
    ) -> None:
        self.rule, self.learning_rate, self.multi_precision = rule, learning_rate, multi_precision
        self.clip_norm = None if grad_clip is None else grad_clip.clip_norm

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> None:
        """Make a run of the program of `loss` a training step, in the precision of its module."""
        self.train(loss, startup_program, None)

    def train(self, loss: Variable, startup_program: Program | None, policy: Policy | None, **options: object) -> None:
        """What `minimize` does, under a policy and with further options of `autocast.training.Trainer`."""
        if self.clip_norm is not None:
            options["clip_norm"] = self.clip_norm
        loss.program.minimize(loss, startup_program, self.rule, learning_rate=self.learning_rate, amp=policy, **options)


class SGD(Optimizer):
    """Stochastic gradient descent."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float | None = None,
        grad_clip: ClipGradByGlobalNorm | None = None,
        multi_precision: bool = False,
    ) -> None:
        rule = training.SGD(weight_decay=weight_decay or 0.0)
        super().__init__(rule, learning_rate, grad_clip, multi_precision)


class Momentum(Optimizer):
    """Stochastic gradient descent with momentum."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        momentum: float = 0.9,
        use_nesterov: bool = False,
        weight_decay: float | None = None,
        grad_clip: ClipGradByGlobalNorm | None = None,
        multi_precision: bool = False,
    ) -> None:
        rule = training.SGD(momentum=momentum, nesterov=use_nesterov, weight_decay=weight_decay or 0.0)
        super().__init__(rule, learning_rate, grad_clip, multi_precision)


class Adam(Optimizer):
    """Adam."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float | None = None,
        grad_clip: ClipGradByGlobalNorm | None = None,
        multi_precision: bool = False,
    ) -> None:
        rule = training.Adam(betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay or 0.0)
        super().__init__(rule, learning_rate, grad_clip, multi_precision)


class AdamW(Optimizer):
    """Adam whose weight decay shrinks the parameter itself."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        grad_clip: ClipGradByGlobalNorm | None = None,
        multi_precision: bool = False,
    ) -> None:
        rule = training.AdamW(betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay)
        super().__init__(rule, learning_rate, grad_clip, multi_precision)


class Lamb(Optimizer):
    """Adam for large batches."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        grad_clip: ClipGradByGlobalNorm | None = None,
        multi_precision: bool = False,
    ) -> None:
        rule = training.LAMB(betas=(beta1, beta2), eps=epsilon, weight_decay=lamb_weight_decay)
        super().__init__(rule, learning_rate, grad_clip, multi_precision)


__getattr__ = named(__name__, __all__)
