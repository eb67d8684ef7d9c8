"""Batch normalization: with statistics of the batch, which the data change, or with fixed ones."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.operators.own import batch_norm_backward, sync_batch_norm_backward
from autocast.training.gradients.registry import Adjoint, Backward, gradient
from autocast.training.gradients.shapes import axes_of, number, rank


def _batch_norm(b: Backward) -> list[Adjoint]:
    adjoint, *statistics = b.adjoint
    attributes = b.call.attrs
    if attributes.training is not None and not attributes.training:
        return _fixed(b, adjoint, *statistics)
    if any(field is not None for field in statistics):
        raise GradientError("the target depends on the next running statistics; expected them to be updates only")
    data, gamma, *_ = b.call.args
    whole = b.emit(batch_norm_backward(data, gamma, adjoint, attrs=attributes))
    of_data, of_gamma, of_beta = (relax.TupleGetItem(whole, field) for field in range(3))
    return [of_data, of_gamma if attributes.scale else None, of_beta if attributes.center else None, None, None]


def _synchronized(b: Backward) -> list[Adjoint]:
    adjoint, *statistics = b.adjoint
    if any(field is not None for field in statistics):
        raise GradientError("the target depends on statistics over ranks; expected them to be updates only")
    data, gamma, *_ = b.call.args
    mean, variance = (b.emit(relax.TupleGetItem(b.result, field)) for field in (3, 4))
    whole = b.emit(sync_batch_norm_backward(data, gamma, adjoint, mean, variance, attrs=b.call.attrs))
    of_data, of_gamma, of_beta = (relax.TupleGetItem(whole, field) for field in range(3))
    return [of_data, of_gamma if b.call.attrs.scale else None, of_beta if b.call.attrs.center else None, None, None]


def _fixed(b: Backward, adjoint: Adjoint, of_mean: Adjoint, of_variance: Adjoint) -> list[Adjoint]:
    """gamma (x - mean) / sqrt(variance + epsilon) + beta; mean and variance are answered as they are."""
    data, gamma, _, mean, variance = b.call.args
    if adjoint is None:
        return [None, None, None, of_mean, of_variance]
    attributes, others = b.call.attrs, axes_of(None, rank(data))
    others.remove(int(attributes.axis) % rank(data))
    reciprocal = b.emit(op.rsqrt(variance + number(float(attributes.epsilon), variance)))
    factor = b.emit(gamma * reciprocal) if attributes.scale else reciprocal
    total = b.emit(op.sum(adjoint, others))
    along: relax.Expr | None = None
    if b.needs[1] or b.needs[4]:
        along = b.emit(op.sum(adjoint * (data - op.expand_dims(mean, others)), others))
    answers: list[Adjoint] = [
        adjoint * op.expand_dims(factor, others) if b.needs[0] else None,
        along * reciprocal if b.needs[1] and attributes.scale else None,
        total if attributes.center else None,
        -(total * factor) if b.needs[3] else None,
        along * factor * reciprocal * reciprocal * number(-0.5, variance) if b.needs[4] else None,
    ]
    for place, more in ((3, of_mean), (4, of_variance)):
        if more is not None and b.needs[place]:
            answers[place] = answers[place] + more
    return answers


RULES = (
    gradient(
        "relax.nn.batch_norm",
        _batch_norm,
        why="with statistics of the batch: gamma r (g - mean(g) - n mean(g n)), n the normalized data; else gamma r g",
    ),
    gradient(
        "relax.collective.batch_norm",
        _synchronized,
        why="as of batch_norm, with means over all ranks' data",
    ),
)
