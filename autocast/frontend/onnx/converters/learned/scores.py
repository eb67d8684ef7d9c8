"""What a model makes of its scores: transforms, and the labels of the largest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Node, number, shape

op = relax.op

#: Scores that are nearer to zero than this are zeros to SOFTMAX_ZERO.
_ZERO = 1e-7

_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def rows_of(node: Node) -> relax.Expr:
    """The node's data as rows of float32: a vector is one row."""
    x = node.cast(node[0], "float32")
    sizes = shape(x)
    return x if len(sizes) == 2 else node.emit(op.reshape(x, [1, sizes[0]]))


def constant(values: Sequence[float] | np.ndarray, dtype: str = "float32") -> relax.Expr:
    """A list of numbers as a tensor."""
    return relax.const(np.asarray(values, dtype), dtype)


def labels_of(node: Node, numbers: str) -> relax.Expr:
    """The labels of classes, in their order; `numbers` is the attribute that has them where they are integers.

    Raises
    ------
    UnsupportedError
        They are texts, which no tensor holds here.
    """
    hint = "expected numbers: fit the classifier to numbers of classes"
    node.refuse("a classifier whose labels are texts", bool(node.attributes.get("classlabels_strings")), hint)
    return constant(node.attributes.get(numbers, ()), "int64")


def transform_of(node: Node) -> str:
    """What becomes of the scores; `PROBIT` is refused."""
    name = str(node.attributes.get("post_transform", "NONE"))
    node.refuse(f"post_transform={name!r}", name not in _TRANSFORMS, f"expected one of {', '.join(_TRANSFORMS)}")
    return name


def transformed(node: Node, scores: relax.Expr, transform: str) -> relax.Expr:
    """Scores (rows, classes) after a transform."""
    if transform == "LOGISTIC":
        return node.emit(op.sigmoid(scores))
    if transform == "SOFTMAX":
        return node.emit(op.nn.softmax(scores, -1))
    if transform == "SOFTMAX_ZERO":
        best = op.max(scores, axis=[-1], keepdims=True)
        is_some = node.emit(op.greater(op.abs(scores), number(_ZERO, scores)))
        powers = node.emit(op.where(is_some, op.exp(op.subtract(scores, best)), number(0.0, scores)))
        rest = op.multiply(scores, op.exp(op.negative(best)))
        total = op.sum(powers, axis=[-1], keepdims=True)
        return node.emit(op.divide(op.where(is_some, powers, rest), total))
    return scores


def of_both(node: Node, score: relax.Expr, transform: str, is_share: bool) -> relax.Expr:
    """The scores of two classes by that of the second: what is left of 1, or, unless it is a share, its negative."""
    if transform == "LOGISTIC":
        score, is_share = node.emit(op.sigmoid(score)), True
    first = op.subtract(number(1.0, score), score) if is_share else op.negative(score)
    return node.emit(op.concat([node.emit(first), score], axis=1))


def best_of(node: Node, labels: relax.Expr, scores: relax.Expr) -> relax.Expr:
    """The label of the largest score of each row, the first of several."""
    return node.emit(op.take(labels, node.emit(op.argmax(scores, -1)), axis=0, mode="clip"))


def one_of(node: Node, labels: relax.Expr, is_second: relax.Expr) -> relax.Expr:
    """The second label where `is_second` (rows, 1), else the first."""
    places = node.cast(op.reshape(is_second, [shape(is_second)[0]]), "int64")
    return node.emit(op.take(labels, places, axis=0, mode="clip"))
