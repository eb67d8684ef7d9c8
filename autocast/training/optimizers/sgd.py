"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from autocast.messages import is_number
from autocast.training.optimizers.optimizer import Operands, Optimizer, number, optimizer_options


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is not 0. As torch's, without dampening.

        gradient' = gradient + weight_decay * parameter
        buffer' = momentum * buffer + gradient'
        parameter' = parameter - learning_rate * buffer'

    `buffer` is the slot "momentum". With `nesterov`, the last line takes `gradient' + momentum * buffer'` for `buffer'`
    (Sutskever et al., 2013).
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", lambda momentum: is_number(momentum) and 0 <= momentum < 1, "0 to 1, 1 excluded")
        self._check("nesterov", lambda nesterov: isinstance(nesterov, bool), "True or False")
        self._check("nesterov", lambda nesterov: not nesterov or self.momentum > 0, "a momentum above 0 with it")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def update(self, operands: Operands) -> tuple[relax.Expr, ...]:
        parameter, gradient = operands.parameter, operands.gradient
        if self.weight_decay:
            gradient = operands.emit(gradient + number(self.weight_decay) * parameter, "decayed")
        if not self.momentum:
            return (parameter - operands.learning_rate * gradient,)
        momentum = operands.emit(number(self.momentum) * operands.slots["momentum"] + gradient, "momentum")
        direction = gradient + number(self.momentum) * momentum if self.nesterov else momentum
        return parameter - operands.learning_rate * direction, momentum
