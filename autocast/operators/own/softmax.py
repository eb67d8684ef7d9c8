"""Backward operators of softmax and log_softmax, from the result `y` and its adjoint `g`."""

from __future__ import annotations

from tvm import relax

from autocast.operators.operator import Expansion, define, like

op = relax.op


def softmax_adjoint(y: relax.Expr, g: relax.Expr, axis: int) -> relax.Expr:
    """y (g - sum(g y)); `y` and `g` are variables."""
    return y * (g - op.sum(g * y, axis, keepdims=True))


def _softmax(e: Expansion) -> relax.Expr:
    y, g = e.operands
    return softmax_adjoint(y, g, int(e.call.attrs.axis))


def _log_softmax(e: Expansion) -> relax.Expr:
    y, g = e.operands
    return g - op.exp(y) * op.sum(g, int(e.call.attrs.axis), keepdims=True)


softmax_backward = define(
    "relax.grad.softmax_backward",
    "y g",
    result=like(1),
    expand=_softmax,
    summary="y (g - sum(g y)), where y = softmax(x)",
    attributes="relax.attrs.SoftmaxAttrs",
)
log_softmax_backward = define(
    "relax.grad.log_softmax_backward",
    "y g",
    result=like(1),
    expand=_log_softmax,
    summary="g - exp(y) sum(g), where y = log_softmax(x)",
    attributes="relax.attrs.SoftmaxAttrs",
)
