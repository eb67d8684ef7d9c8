"""Support vector machines: kernels of rows and of the vectors that a node's attributes say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from tvm import relax

from autocast.frontend.importing.loops import looped
from autocast.frontend.onnx.converters.learned.scores import (
    best_of,
    constant,
    labels_of,
    rows_of,
    transform_of,
    transformed,
)
from autocast.frontend.onnx.converters.node import Converter, Node, number, shape

op = relax.op

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _kernel(node: Node, x: relax.Expr, vectors: np.ndarray) -> relax.Expr:
    """(rows, vectors): how alike each row and each vector are."""
    kind = str(node.attributes.get("kernel_type", "LINEAR"))
    node.refuse(f"kernel_type={kind!r}", kind not in _KERNELS, f"expected one of {', '.join(_KERNELS)}")
    gamma, coefficient, degree = (float(one) for one in [*node.attributes.get("kernel_params", ()), 0.0, 0.0, 0.0][:3])
    if kind == "RBF":
        apart = node.emit(op.subtract(op.expand_dims(x, 1), constant(vectors[None])))
        return node.emit(op.exp(op.multiply(op.sum(op.multiply(apart, apart), axis=[2]), number(-gamma, x))))
    products = node.emit(op.matmul(x, constant(np.ascontiguousarray(vectors.T))))
    if kind == "LINEAR":
        return products
    scaled = node.emit(op.add(op.multiply(products, number(gamma, x)), number(coefficient, x)))
    return node.emit(op.tanh(scaled) if kind == "SIGMOID" else op.power(scaled, number(degree, x)))


def _vectors(node: Node, count: int) -> np.ndarray:
    return np.array(node.attributes["support_vectors"], "float32").reshape(count, -1)


def _regressor(node: Node) -> relax.Expr:
    """The sum of kernels and coefficients; of one class, whether it is positive, as 1 or -1."""
    x, count = rows_of(node), int(node.attributes.get("n_supports", 0))
    weights = np.array(node.attributes["coefficients"], "float32").reshape(-1, 1)
    rho = constant(node.attributes.get("rho", (0.0,))[:1])
    likeness = _kernel(node, x, _vectors(node, count) if count else weights.reshape(1, -1))
    score = node.emit(op.add(op.matmul(likeness, constant(weights)) if count else likeness, rho))
    if node.attributes.get("one_class"):
        return node.emit(op.where(op.greater(score, number(0.0, x)), number(1.0, x), number(-1.0, x)))
    return transformed(node, score, transform_of(node))


def _classifier(node: Node) -> relax.Expr:
    """By the votes of a machine for each pair of classes; the scores are these machines', or shares of classes."""
    labels, transform = labels_of(node, "classlabels_ints"), transform_of(node)
    classes, counts = shape(labels)[0], [int(count) for count in node.attributes.get("vectors_per_class", ())]
    if not counts:
        return _linear_classifier(node, labels, transform)
    asked, starts = node.attributes, np.cumsum([0, *counts])
    node.refuse(f"vectors of {len(counts)} of {classes} classes", len(counts) != classes, "expected some of each")
    likeness = _kernel(node, rows_of(node), _vectors(node, int(starts[-1])))
    coefficients = np.array(asked["coefficients"], "float32").reshape(classes - 1, -1)
    pairs = [*combinations(range(classes), 2)]
    weights = np.zeros((int(starts[-1]), len(pairs)), "float32")
    for at, (i, j) in enumerate(pairs):
        weights[starts[i] : starts[i + 1], at] = coefficients[j - 1, starts[i] : starts[i + 1]]
        weights[starts[j] : starts[j + 1], at] = coefficients[i, starts[j] : starts[j + 1]]
    scores = node.emit(op.add(op.matmul(likeness, constant(weights)), constant(asked["rho"])))
    if asked.get("prob_a"):
        shares = _shares(node, scores, pairs, classes)
        return relax.Tuple([_voted(node, labels, scores, pairs, classes), transformed(node, shares, transform)])
    return relax.Tuple([_voted(node, labels, scores, pairs, classes), _of_machines(node, scores, transform, classes)])


def _of_machines(node: Node, scores: relax.Expr, transform: str, classes: int) -> relax.Expr:
    if classes != 2:
        return transformed(node, scores, transform)
    node.refuse(f"post_transform={transform!r} of two classes", transform != "NONE", "expected NONE")
    return node.emit(op.concat([node.emit(op.negative(scores)), scores], axis=1))


def _voted(
    node: Node, labels: relax.Expr, scores: relax.Expr, pairs: list[tuple[int, int]], classes: int
) -> relax.Expr:
    """The label that most machines are for, the first of several."""
    first, second = np.zeros((2, len(pairs), classes), "float32")
    for at, (i, j) in enumerate(pairs):
        first[at, i] = second[at, j] = 1
    is_first = node.cast(op.greater(scores, number(0.0, scores)), "float32")
    votes = op.add(op.matmul(is_first, constant(first - second)), constant(second.sum(0)))
    return best_of(node, labels, node.emit(votes))


def _linear_classifier(node: Node, labels: relax.Expr, transform: str) -> relax.Expr:
    """Without vectors the coefficients are weights of features, a row for each class."""
    classes = shape(labels)[0]
    weights = np.array(node.attributes["coefficients"], "float32").reshape(classes, -1)
    likeness = _kernel(node, rows_of(node), weights)
    scores = node.emit(op.add(likeness, constant(node.attributes.get("rho", (0.0,))[:1])))
    return relax.Tuple([best_of(node, labels, scores), transformed(node, scores, transform)])


#: Shares of classes are sought for so many steps, or until none is off by more than this over the number of classes.
_STEPS, _ERROR = 100, 0.005

#: A machine is never more certain than this.
_CERTAIN = 1e-7


def _shares(node: Node, scores: relax.Expr, pairs: list[tuple[int, int]], classes: int) -> relax.Expr:
    """The shares of classes that fit best to what machines say of each pair, step by step as libsvm seeks them.

    Source: Wu, Lin, Weng, "Probability estimates for multi-class classification by pairwise coupling", 2004.
    """
    slope, offset = (constant(node.attributes[name]) for name in ("prob_a", "prob_b"))
    certain = op.sigmoid(op.negative(op.add(op.multiply(scores, slope), offset)))
    certain = node.emit(op.clip(certain, _CERTAIN, 1 - _CERTAIN))
    of_first, of_second = np.zeros((2, len(pairs), classes * classes), "float32")
    for at, (i, j) in enumerate(pairs):
        of_first[at, i * classes + j] = of_second[at, j * classes + i] = 1
    both = op.add(op.matmul(certain, constant(of_first - of_second)), constant(of_second.sum(0)))
    rows = shape(scores)[0]
    is_other = constant(1 - np.eye(classes))
    table = node.emit(op.multiply(op.reshape(both, [rows, classes, classes]), is_other))  # r[i][j]
    turned = node.emit(op.permute_dims(table, [0, 2, 1]))
    own = op.expand_dims(op.sum(op.multiply(turned, turned), axis=[2]), 2)
    q = op.subtract(op.multiply(own, constant(np.eye(classes))), op.multiply(turned, table))
    start = node.emit(op.full([rows, classes], number(1.0 / classes, scores), "float32"))
    return _sought(node, start, node.emit(q), classes)


def _sought(node: Node, start: relax.Expr, q: relax.Expr, classes: int) -> relax.Expr:
    """Shares p after steps that lower p q p, (rows, classes), of q (rows, classes, classes)."""
    emit, one, zero = node.emit, relax.const(1, "int64"), relax.const(0.0, "float32")

    def products(p: relax.Expr, q: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        row = emit(op.sum(op.multiply(q, op.expand_dims(p, 1)), axis=[2]))
        return row, emit(op.sum(op.multiply(p, row), axis=[1], keepdims=True))

    def is_off(p: relax.Expr, q: relax.Expr) -> relax.Expr:
        row, whole = products(p, q)
        worst = op.max(op.abs(op.subtract(row, whole)), axis=[1], keepdims=True)
        return emit(op.greater_equal(worst, relax.const(_ERROR / classes, "float32")))

    def goes_on(step: relax.Expr, p: relax.Expr, q: relax.Expr) -> relax.Expr:
        some = op.greater(op.sum(node.cast(is_off(p, q), "float32")), zero)
        return emit(op.logical_and(some, op.less(step, relax.const(_STEPS, "int64"))))

    def after(states: Sequence[relax.Expr], captured: Sequence[relax.Expr]) -> list[relax.Expr]:
        (step, p), (q,) = states, captured
        before, off = p, is_off(p, q)
        row, whole = products(p, q)
        for at in range(classes):
            column, diagonal, its = (
                emit(op.strided_slice(x, axes=axes, begin=[at] * len(axes), end=[at + 1] * len(axes)))
                for x, axes in ((q, [2]), (q, [1, 2]), (row, [1]))
            )
            column, diagonal = emit(op.squeeze(column, [2])), emit(op.squeeze(diagonal, [2]))
            difference = emit(op.divide(op.subtract(whole, its), diagonal))
            total = emit(op.add(difference, relax.const(1.0, "float32")))
            more = op.multiply(
                difference, op.add(op.multiply(difference, diagonal), op.multiply(its, relax.const(2.0, "float32")))
            )
            whole = emit(op.divide(op.divide(op.add(whole, more), total), total))
            row = emit(op.divide(op.add(row, op.multiply(difference, column)), total))
            here = constant(np.eye(classes)[at : at + 1])
            p = emit(op.divide(op.add(p, op.multiply(difference, here)), total))
        p, step = emit(op.where(off, p, before)), emit(op.add(step, one))
        return [goes_on(step, p, q), step, p]

    first = relax.const(0, "int64")
    name = f"shares_{next(filter(None, node.results))}"
    return looped(node.builder, name, goes_on(first, start, q), [first, start], [q], after)[1]


CONVERTERS: dict[str, Converter] = {"SVMClassifier": _classifier, "SVMRegressor": _regressor}
