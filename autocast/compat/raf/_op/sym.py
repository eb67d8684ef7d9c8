"""Losses of a recorded result: `sym.nll_loss(labels, sym.log_softmax(model.record(x)))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from autocast.compat.names import named
from autocast.compat.raf.symbols import Symbol, symbol_of

__all__ = ["cross_entropy", "log_softmax", "nll_loss", "reshape"]


__getattr__ = named(__name__, __all__, instead={"softmax": "losses here are of sym.log_softmax"})


def log_softmax(x: Symbol, axis: int = -1) -> Symbol:
    """The logarithm of the softmax along an axis."""
    return _of("log_softmax", x, lambda result: relax.op.nn.log_softmax(result, axis))


def reshape(x: Symbol, shape: Sequence[int]) -> Symbol:
    """The result in another shape."""
    return _of("reshape", x, lambda result: relax.op.reshape(result, tuple(shape)))


def nll_loss(y_true: Any, y_pred: Symbol) -> Symbol:
    """The mean of the negated logarithms of probabilities (rows, classes) at class indices, int64."""
    inner = symbol_of("sym.nll_loss", y_pred).build
    return Symbol(lambda result, labels: relax.op.nn.nll_loss(inner(result, labels), labels), y_true)


def cross_entropy(y_true: Any, y_pred: Symbol) -> Symbol:
    """`nll_loss` of the `log_softmax` of logits (rows, classes)."""
    return nll_loss(y_true, log_softmax(y_pred))


def _of(name: str, x: Symbol, function: Callable[[relax.Expr], relax.Expr]) -> Symbol:
    symbol = symbol_of(f"sym.{name}", x)
    return Symbol(lambda result, labels: function(symbol.build(result, labels)), symbol.labels)
