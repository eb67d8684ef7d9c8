"""LAMB: Adam for large batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import relax

from autocast.training.optimizers.adam import Adam
from autocast.training.optimizers.optimizer import Operands, number, optimizer_options

op = relax.op


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class LAMB(Adam):
    """LAMB (You et al., 2020): Adam whose step is as long as the parameter is, tensor by tensor.

    direction' = Adam's direction + weight_decay * parameter
    trust = |parameter| / |direction'|, or 1 where either is 0
    parameter' = parameter - learning_rate * trust * direction'
    """

    weight_decay: float = 0.01
    eps: float = 1e-6

    decoupled: ClassVar[bool] = True

    def update(self, operands: Operands) -> tuple[relax.Expr, ...]:
        emit, parameter = operands.emit, operands.parameter
        direction, *moments = self.direction(operands)
        if self.weight_decay:
            direction = direction + number(self.weight_decay) * parameter
        direction = emit(direction, "direction")
        trust = trust_ratio(norm(operands, parameter), norm(operands, direction))
        return parameter - operands.learning_rate * trust * direction, *moments


def norm(operands: Operands, tensor: relax.Expr) -> relax.Var:
    """The Euclidean norm of a whole tensor, bound to a variable."""
    return operands.emit(op.sqrt(operands.total(op.sum(op.square(tensor)))), "norm")


def trust_ratio(size: relax.Expr, length: relax.Expr) -> relax.Expr:
    """What makes a step of `length` as long as the parameter's `size`; 1 where either is 0."""
    both = op.logical_and(op.greater(size, number(0.0)), op.greater(length, number(0.0)))
    return op.where(both, size / length, number(1.0))
