"""Losses."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import divide
from tests.fuzz.operators.normalization import log_softmax, softmax
from tests.fuzz.operators.reductions import scaled, stored, total, wide
from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import Tensor, elementwise


def _negative(x: Tensor) -> Tensor:
    return Tensor(-x.value, x.error, x.dtype)


def _all(x: Tensor) -> tuple[int, ...]:
    return tuple(range(x.value.ndim))


@operator("relax.nn.cross_entropy_with_logits", units=2)
def _with_logits(call: relax.Call, predictions: Tensor, labels: Tensor) -> Tensor:
    products = elementwise(np.multiply, wide(predictions), wide(labels)).rounded(None)
    result = _negative(total(products, _all(products), keep=False))
    rows = predictions.shape[0] if predictions.value.ndim > 1 else 1
    return stored(scaled(result, 1 / rows), dtype_of(call))


def _picked(x: Tensor, targets: Tensor, axis: int) -> Tensor:
    index = np.expand_dims(np.clip(targets.value, 0, x.shape[axis] - 1), axis)
    value, error = (np.take_along_axis(a, index, axis).squeeze(axis) for a in (x.value, x.error))
    return Tensor.of(value, np.where(targets.error > 0, np.inf, error), x.dtype)


def _reduced(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    result = total(losses, _all(losses), keep=False)
    return (
        result if reduction == "sum" else divide(None, result, total(weights, _all(weights), keep=False)).rounded(None)
    )


@operator("relax.nn.nll_loss", units=2)
def _nll_loss(call: relax.Call, predictions: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    axis = 1 if predictions.value.ndim > 1 else 0
    if weights is None:
        weights = Tensor.exact(np.ones(predictions.shape[axis]), "float32")
    count = weights.value.shape[0]
    index = np.clip(targets.value, 0, count - 1)
    valid = targets.value != int(call.attrs.ignore_index)
    factors = Tensor.of(weights.value[index] * valid, weights.error[index] * valid, "float32")
    losses = elementwise(np.multiply, _negative(_picked(wide(predictions), targets, axis)), factors).rounded(None)
    return stored(_reduced(losses, factors, str(call.attrs.reduction)), dtype_of(call))


@operator("relax.nn.cross_entropy", units=2)
def _cross_entropy(call: relax.Call, logits: Tensor, labels: Tensor) -> Tensor:
    smoothing, classes = float(call.attrs.label_smoothing), logits.shape[-1]
    logarithms = log_softmax(wide(logits), -1)
    losses = scaled(_picked(logarithms, labels, logits.value.ndim - 1), 1 - smoothing)
    if smoothing:
        uniform = scaled(total(logarithms, (logits.value.ndim - 1,), keep=False), smoothing / classes)
        losses = elementwise(np.add, losses, uniform).rounded(None)
    valid = labels.value != int(call.attrs.ignore_index)
    losses = Tensor.of(np.where(valid, -losses.value, 0.0), np.where(valid, losses.error, 0.0), losses.dtype)
    counted = Tensor.exact(valid, "float32")
    return stored(_reduced(losses, counted, str(call.attrs.reduction)), dtype_of(call))


def _shares(g: Tensor, factors: Tensor, reduction: str) -> Tensor:
    """The adjoint of each loss, by that of what the losses were reduced to."""
    if reduction == "mean":
        g = divide(None, wide(g), total(factors, _all(factors), keep=False)).rounded(None)
    return elementwise(np.multiply, wide(g), factors).rounded(None)


@operator("relax.grad.cross_entropy_backward", units=2)
def _cross_entropy_backward(call: relax.Call, logits: Tensor, labels: Tensor, g: Tensor) -> Tensor:
    smoothing, classes = float(call.attrs.label_smoothing), logits.shape[-1]
    valid = labels.value != int(call.attrs.ignore_index)
    shares = _shares(g, Tensor.exact(valid, "float32"), str(call.attrs.reduction))
    targets = (1 - smoothing) * (labels.value[..., None] == np.arange(classes)) + smoothing / classes
    unsure = np.where(labels.error > 0, np.inf, 0.0)[..., None]
    off = elementwise(np.subtract, softmax(wide(logits), -1), Tensor.of(targets, unsure, "float32")).rounded(None)
    shares = Tensor(shares.value[..., None], shares.error[..., None], shares.dtype)
    return stored(elementwise(np.multiply, off, shares), dtype_of(call))


@operator("relax.grad.nll_loss_backward", units=2)
def _nll_loss_backward(
    call: relax.Call, g: Tensor, predictions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    axis = 1 if predictions.value.ndim > 1 else 0
    count = predictions.shape[axis]
    if weights is None:
        weights = Tensor.exact(np.ones(count), "float32")
    index = np.clip(targets.value, 0, count - 1)
    valid = targets.value != int(call.attrs.ignore_index)
    factors = Tensor.of(weights.value[index] * valid, weights.error[index] * valid, "float32")
    shares = _negative(_shares(g, factors, str(call.attrs.reduction)))
    here = np.moveaxis(targets.value[..., None] == np.arange(count), -1, axis)
    unsure = np.where(targets.error > 0, np.inf, 0.0)
    spread = Tensor.of(np.expand_dims(shares.value, axis), np.expand_dims(shares.error + unsure, axis), "float32")
    return stored(elementwise(np.multiply, spread, Tensor.exact(here, "float32")), dtype_of(call))
