"""Losses: one number to make small, from a model's output and labels.

Every loss, with the checks of labels and the weights of classes that they share: hence its more than 300 lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from autocast import ir
from autocast.errors import InputError, TrainingError
from autocast.messages import check_option, is_number, is_whole, named_options
from autocast.operators import own

op = relax.op

_REDUCTIONS = ("mean", "sum")
_KINDS = ("indices", "probabilities")

_NO_WEIGHTS = "labels have no weights here, classes do: CrossEntropy(weight=(...)), BCEWithLogits(pos_weight=(...))"

#: Decorates every loss: the keywords of torch's that there are not are errors that say what there is.
loss_options = named_options(
    TrainingError,
    {"weight": _NO_WEIGHTS, "pos_weight": _NO_WEIGHTS},
    positional="a loss is given to the trainer, which computes it: Trainer(model, CrossEntropy(), ...)",
)


@loss_options
@dataclass(frozen=True, kw_only=True)
class Loss:
    """Base class: a frozen value. Subclasses say what labels they take and compute a 0-d float32 tensor.

    Attributes
    ----------
    output : int or str
        Which of the model's outputs is compared with the labels: its position, or its name in `Model.output_names`.
    reduction : str
        "mean" or "sum": over all labels that count.
    """

    output: int | str = 0
    reduction: str = "mean"

    def __post_init__(self) -> None:
        self._check("reduction", _REDUCTIONS.__contains__, "'mean' or 'sum'")

    def labels(self, prediction: relax.Expr) -> relax.TensorType:
        """The type of the labels for a prediction: its shape, float32, unless the subclass says otherwise."""
        return relax.TensorType(ir.shape_of(prediction), "float32")

    def arranged(
        self, emit: Callable[[relax.Expr], relax.Expr], prediction: relax.Expr, labels: relax.Expr
    ) -> tuple[relax.Expr, relax.Expr]:
        """The prediction and the labels as `compute` takes them."""
        return prediction, labels

    def compute(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        """The loss, of a float32 prediction and labels as `labels` asks for them."""
        return self._reduce(self.pointwise(prediction, labels))

    def pointwise(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        """The loss of every element; `compute` reduces it."""
        raise NotImplementedError

    def check_values(self, labels: np.ndarray, classes: int) -> None:
        """Raise an InputError where indices are none of `classes`: compiled steps, which read them, do not check."""

    def other_labels(self, prediction: tuple[Any, ...], labels: tuple[int, ...]) -> str:
        """What to try where labels of this shape are of another kind than this loss takes; empty where they are not."""
        return ""

    def _reduce(self, losses: relax.Expr) -> relax.Expr:
        return op.mean(losses) if self.reduction == "mean" else op.sum(losses)

    def _check(self, name: str, is_legal: Callable[[Any], bool], expected: str) -> None:
        check_option(self, name, is_legal, TrainingError, expected)


@loss_options
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Loss):
    """Cross-entropy of logits of shape (..., classes) and labels, as torch's.

    Attributes
    ----------
    axis : int
        The axis of the classes: the last, or any other. torch's is 1, that of an image's channels.
    kind : str
        "indices": labels are int64 of shape (...). "probabilities": float32 of the logits' shape (one-hot, or soft).
    ignore_index : int
        Indices of this value count for nothing, and the mean is over the others.
    label_smoothing : float
        How much of each label's probability is spread evenly over all classes (Szegedy et al., 2016).
    weight : sequence of float, optional
        What each class counts; the mean of indices is one of labels that count so.
    """

    axis: int = -1
    kind: str = "indices"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_weights(self, "weight")
        self._check("axis", is_whole, "the axis of the classes: -1, or 1 for images as torch has them")
        self._check("kind", _KINDS.__contains__, "'indices' or 'probabilities'")
        self._check("ignore_index", is_whole, "a whole number")
        self._check(
            "label_smoothing", lambda share: is_number(share) and 0 <= share < 1, "a number from 0 to 1, 1 excluded"
        )

    def labels(self, prediction: relax.Expr) -> relax.TensorType:
        return (
            super().labels(prediction) if self.kind == "probabilities" else _indices(prediction, self._axis(prediction))
        )

    def _axis(self, prediction: relax.Expr) -> int:
        rank = len(_shape(prediction))
        if not -rank <= self.axis < rank:
            raise TrainingError(
                f"{type(self).__name__}: got axis={self.axis} for a prediction {prediction.ty}, expected one from "
                f"{-rank} to {rank - 1}. Try {type(self).__name__}(axis=-1)"
            )
        return int(self.axis) % rank

    def other_labels(self, prediction: tuple[Any, ...], labels: tuple[int, ...]) -> str:
        axes = len(labels) - len(prediction)
        if self.kind == "indices" and axes == 0:
            return (
                f"{type(self).__name__}(kind='probabilities') for one-hot or soft labels in float32, or "
                "labels.argmax(-1) for the indices of one-hot ones"
            )
        if self.kind == "probabilities" and axes == -1:
            return f"{type(self).__name__}(), whose labels are indices of classes"
        of_channels = self.kind == "indices" and labels == (*prediction[:1], *prediction[2:])
        if of_channels and labels != tuple(
            size for i, size in enumerate(prediction) if i != self.axis % len(prediction)
        ):
            return f"{type(self).__name__}(axis=1), as torch has the classes of images"
        return ""

    def arranged(
        self, emit: Callable[[relax.Expr], relax.Expr], prediction: relax.Expr, labels: relax.Expr
    ) -> tuple[relax.Expr, relax.Expr]:
        """With the classes along the last axis."""
        axis, rank = self._axis(prediction), len(_shape(prediction))
        if axis == rank - 1:
            return prediction, labels
        order = [*(i for i in range(rank) if i != axis), axis]
        moved = emit(op.permute_dims(prediction, order))
        return moved, emit(op.permute_dims(labels, order)) if self.kind == "probabilities" else labels

    def check_values(self, labels: np.ndarray, classes: int) -> None:
        if self.kind == "indices":
            _check_indices(self, labels, classes, self.ignore_index)

    def compute(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        if self.kind == "probabilities":
            return self._reduce(self._of_probabilities(prediction, labels))
        if self.weight is not None:
            return self._weighted(prediction, labels, _weights(self, prediction, self.weight))
        return own.cross_entropy(
            prediction,
            labels,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )

    def _of_probabilities(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        if self.label_smoothing:
            classes = _shape(labels)[-1]
            kept, spread = (_const(value) for value in (1 - self.label_smoothing, self.label_smoothing / classes))
            labels = op.add(op.multiply(labels, kept), spread)
        if self.weight is not None:
            labels = op.multiply(labels, _weights(self, prediction, self.weight))
        return op.negative(op.sum(op.multiply(labels, op.nn.log_softmax(prediction, axis=-1)), axis=-1))

    def _weighted(self, prediction: relax.Expr, labels: relax.Expr, weights: relax.Expr) -> relax.Expr:
        counts = op.not_equal(labels, relax.const(self.ignore_index, "int64"))
        classes = op.where(counts, labels, relax.const(0, "int64"))
        weight = op.multiply(op.take(weights, classes, axis=0), op.astype(counts, "float32"))
        losses = own.cross_entropy(
            prediction, labels, ignore_index=self.ignore_index, label_smoothing=0.0, reduction="none"
        )
        losses = op.multiply(losses, op.multiply(weight, _const(1 - self.label_smoothing)))
        if self.label_smoothing:
            logs = op.multiply(op.nn.log_softmax(prediction, axis=-1), weights)
            share = _const(-self.label_smoothing / len(self.weight or ()))
            spread = op.multiply(op.multiply(op.sum(logs, axis=-1), share), op.astype(counts, "float32"))
            losses = op.add(losses, spread)
        total = op.sum(losses)
        return op.divide(total, op.sum(weight)) if self.reduction == "mean" else total


@loss_options
@dataclass(frozen=True, kw_only=True)
class NLL(Loss):
    """The negative logarithm of the label's probability, of log-probabilities of shape (..., classes), as torch's.

    Labels are int64 of shape (...); those that equal `ignore_index` count for nothing, and others as the `weight` of
    their class, if that is given: one number for each.
    """

    ignore_index: int = -100
    weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_weights(self, "weight")
        self._check("ignore_index", is_whole, "a whole number")

    def labels(self, prediction: relax.Expr) -> relax.TensorType:
        return _indices(prediction, len(_shape(prediction)) - 1)

    def other_labels(self, prediction: tuple[Any, ...], labels: tuple[int, ...]) -> str:
        return "labels.argmax(-1): the indices of one-hot labels" if len(labels) == len(prediction) else ""

    def check_values(self, labels: np.ndarray, classes: int) -> None:
        _check_indices(self, labels, classes, self.ignore_index)

    def compute(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        rows, labels = _rows(prediction, labels)
        weights = None if self.weight is None else _weights(self, prediction, self.weight)
        return op.nn.nll_loss(rows, labels, weights, self.reduction, self.ignore_index)


@loss_options
@dataclass(frozen=True, kw_only=True)
class MSE(Loss):
    """The square of the difference."""

    def pointwise(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        return op.square(op.subtract(prediction, labels))


@loss_options
@dataclass(frozen=True, kw_only=True)
class SmoothL1(Loss):
    """`0.5 * d ** 2 / beta` for differences `d` smaller than `beta`, else `|d| - 0.5 * beta` (Girshick, 2015).

    A `beta` of 0 leaves the absolute differences.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta", lambda beta: is_number(beta) and beta >= 0, "a finite number from 0 on")

    def pointwise(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        difference = op.subtract(prediction, labels)
        size = op.abs(difference)
        if not self.beta:
            return size
        near = op.multiply(op.square(difference), _const(0.5 / self.beta))
        return op.where(op.less(size, _const(self.beta)), near, op.subtract(size, _const(0.5 * self.beta)))


@loss_options
@dataclass(frozen=True, kw_only=True)
class BCEWithLogits(Loss):
    """Binary cross-entropy of logits and labels from 0 to 1: `log(1 + exp(x)) - x * label`, which cannot overflow.

    Attributes
    ----------
    pos_weight : sequence of float, optional
        What labels of 1 count beside those of 0, for each of the last axis.
    """

    pos_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_weights(self, "pos_weight")

    def pointwise(self, prediction: relax.Expr, labels: relax.Expr) -> relax.Expr:
        if self.pos_weight is not None:
            positive = op.multiply(labels, _weights(self, prediction, self.pos_weight))
            negative = op.multiply(op.subtract(_const(1.0), labels), op.nn.softplus(prediction))
            return op.add(op.multiply(positive, op.nn.softplus(op.negative(prediction))), negative)
        return op.subtract(op.nn.softplus(prediction), op.multiply(prediction, labels))


def _indices(prediction: relax.Expr, axis: int) -> relax.TensorType:
    return relax.TensorType([size for i, size in enumerate(_shape(prediction)) if i != axis], "int64")


def _check_indices(loss: Loss, labels: np.ndarray, classes: int, ignored: int) -> None:
    counted = labels[labels != ignored]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if wrong.size:
        raise InputError(
            f"{type(loss).__name__}: {wrong.size} of {labels.size} labels are no class, {wrong[0]} the first, expected "
            f"labels: int64[{', '.join(map(str, labels.shape))}] from 0 to {classes - 1}, or {ignored}, which counts "
            f"for nothing. Try {type(loss).__name__}(ignore_index={wrong[0]}) if that is what it should mean, or a "
            "model with more classes"
        )
    if labels.size and not counted.size and loss.reduction == "mean":
        raise InputError(
            f"{type(loss).__name__}: all {labels.size} labels are {ignored}, which counts for nothing, and the mean of "
            "nothing is no number; expected a label that counts. Leave such a batch out"
        )


def _rows(prediction: relax.Expr, labels: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Predictions as (rows, classes), labels as (rows,)."""
    shape = _shape(prediction)
    rows = math.prod(shape[:-1])
    if len(shape) == 2:
        return prediction, labels
    return op.reshape(prediction, (rows, shape[-1])), op.reshape(labels, (rows,))


def _shape(tensor: relax.Expr) -> tuple[Any, ...]:
    return ir.shape_of(tensor) or ()


def _const(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def _set_weights(loss: Loss, name: str) -> None:
    """Keep the weights of classes, given as any sequence of numbers, as a tuple."""
    given = getattr(loss, name)
    if given is None:
        return
    try:
        weights = () if isinstance(given, str) else tuple(map(float, given))
    except (TypeError, ValueError):
        weights = ()
    object.__setattr__(loss, name, weights)
    expected = f"numbers of 0 and more, one for each class (got {given!r})"
    loss._check(name, lambda numbers: numbers and all(0 <= number < math.inf for number in numbers), expected)


def _weights(loss: Loss, prediction: relax.Expr, weights: tuple[float, ...]) -> relax.Expr:
    """The weights of classes as a tensor; a TrainingError where there are more or fewer classes."""
    classes = _shape(prediction)[-1]
    if classes != len(weights):
        raise TrainingError(
            f"{type(loss).__name__}: got {len(weights)} weights for a prediction {prediction.ty}, expected one for "
            f"each of its classes: {classes}"
        )
    return relax.const(np.asarray(weights, "float32"))
