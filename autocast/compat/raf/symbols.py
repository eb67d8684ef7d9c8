"""Results of a recorded model, and the losses that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from autocast.errors import InputError
from autocast.training.losses import Loss


@dataclass(frozen=True)
class Symbol:
    """An expression of a model's first result and of labels, built when a loss is appended to the model.

    `labels` is an example of the labels, None where it reads none.
    """

    build: Callable[[relax.Expr, relax.Expr], relax.Expr]
    labels: Any = None


@dataclass(frozen=True, kw_only=True)
class RecordedLoss(Loss):
    """The loss that a symbol computes."""

    symbol: Symbol

    def labels(self, prediction: relax.Expr) -> relax.TensorType:
        labels = self.symbol.labels
        return relax.TensorType(tuple(labels.shape), str(labels.dtype).removeprefix("torch."))

    def compute(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        return self.symbol.build(prediction, labels)


def symbol_of(where: str, argument: Any) -> Symbol:
    """`argument`, which has to be a symbol; InputError if it is none."""
    if not isinstance(argument, Symbol):
        raise InputError(
            f"{where}: got a {type(argument).__name__}, expected what model.record(...) gave, or what was made of it"
        )
    return argument
