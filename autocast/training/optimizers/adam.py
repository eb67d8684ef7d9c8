"""Adam, and Adam with weight decay decoupled from the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import relax

from autocast.messages import is_number
from autocast.training.optimizers.optimizer import Operands, Optimizer, number, optimizer_options

op = relax.op


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as torch's: `weight_decay * parameter` is added to the gradient.

    exp_avg' = beta1 * exp_avg + (1 - beta1) * gradient
    exp_avg_sq' = beta2 * exp_avg_sq + (1 - beta2) * gradient ** 2
    direction = exp_avg' / (1 - beta1 ** step) / (sqrt(exp_avg_sq' / (1 - beta2 ** step)) + eps)
    parameter' = parameter - learning_rate * direction
    """

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    #: Whether weight decay shrinks the parameter itself, instead of being part of the gradient.
    decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("betas", _are_two_factors, "two numbers from 0 to 1, 1 excluded, as (0.9, 0.999)")
        self._check("eps", lambda eps: is_number(eps) and eps >= 0, "a finite number of 0 or more")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def scalars(self, step: relax.Expr) -> dict[str, relax.Expr]:
        # In float64: 1 - 0.999 ** step loses four digits of seven in float32.
        one = relax.const(1.0, "float64")
        bias, bias_sq = (op.subtract(one, op.power(relax.const(beta, "float64"), step)) for beta in self.betas)
        return {
            "correction": op.astype(one / bias, "float32"),
            "correction_sq": op.astype(one / op.sqrt(bias_sq), "float32"),
        }

    def update(self, operands: Operands) -> tuple[relax.Expr, ...]:
        parameter, rate = operands.parameter, operands.learning_rate
        if self.decoupled and self.weight_decay:
            parameter = parameter - rate * number(self.weight_decay) * parameter
        direction, *moments = self.direction(operands)
        return parameter - rate * direction, *moments

    def direction(self, operands: Operands) -> tuple[relax.Expr, ...]:
        """Where to go, and the new moments."""
        mean, deviation, *moments = self.moments(operands)
        return mean / (deviation + number(self.eps)), *moments

    def moments(self, operands: Operands) -> tuple[relax.Expr, ...]:
        """The mean and the deviation, corrected for their bias, and the new moments."""
        emit, gradient = operands.emit, operands.gradient
        if self.weight_decay and not self.decoupled:
            gradient = emit(gradient + number(self.weight_decay) * operands.parameter, "decayed")
        beta1, beta2 = self.betas
        exp_avg = emit(number(beta1) * operands.slots["exp_avg"] + number(1 - beta1) * gradient, "exp_avg")
        exp_avg_sq = emit(
            number(beta2) * operands.slots["exp_avg_sq"] + number(1 - beta2) * (gradient * gradient), "exp_avg_sq"
        )
        mean = exp_avg * operands.scalars["correction"]
        deviation = op.sqrt(exp_avg_sq) * operands.scalars["correction_sq"]
        return mean, deviation, exp_avg, exp_avg_sq


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself (Loshchilov and Hutter, 2019), as torch's.

    parameter' = parameter * (1 - learning_rate * weight_decay) - learning_rate * direction
    """

    weight_decay: float = 0.01

    decoupled: ClassVar[bool] = True


def _are_two_factors(betas: Sequence[float]) -> bool:
    return len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
