"""LANS: LAMB with normalized gradients and Nesterov's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import relax

from autocast.training.optimizers.adam import Adam
from autocast.training.optimizers.lamb import norm, trust_ratio
from autocast.training.optimizers.optimizer import Operands, number, optimizer_options

op = relax.op


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class LANS(Adam):
    """LANS (Zheng et al., 2020, arXiv 2006.13484), tensor by tensor.

    gradient' = gradient / |gradient|, or 0 where that is 0
    mean, deviation = Adam's, of gradient', both corrected for their bias
    momentum = mean / (deviation + eps) + weight_decay * parameter
    current = gradient' / (deviation + eps) + weight_decay * parameter
    direction = beta1 * trust(momentum) * momentum + (1 - beta1) * trust(current) * current
    parameter' = parameter - learning_rate * direction

    `trust(update)` is |parameter| / |update|, or 1 where either is 0.
    """

    weight_decay: float = 0.01
    eps: float = 1e-6

    decoupled: ClassVar[bool] = True

    def update(self, operands: Operands) -> tuple[relax.Expr, ...]:
        emit, parameter, beta1 = operands.emit, operands.parameter, self.betas[0]
        length = norm(operands, operands.gradient)
        is_zero = op.equal(length, number(0.0))
        factor = emit(op.where(is_zero, number(0.0), number(1.0) / op.where(is_zero, number(1.0), length)), "factor")
        gradient = emit(operands.gradient * factor, "normalized")
        mean, deviation, *moments = self.moments(operands._replace(gradient=gradient))
        denominator = emit(deviation + number(self.eps), "denominator")
        size, step = norm(operands, parameter), None
        for update, share in ((mean / denominator, beta1), (gradient / denominator, 1 - beta1)):
            if self.weight_decay:
                update = update + number(self.weight_decay) * parameter
            update = emit(update, "direction")
            scaled = number(share) * trust_ratio(size, norm(operands, update)) * update
            step = scaled if step is None else step + scaled
        return parameter - operands.learning_rate * step, *moments
