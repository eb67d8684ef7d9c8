"""Ensembles of trees as gathers and comparisons: each row goes down all trees at once, a level after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.learned.ensembles import LEAF, Forest, of_nodes, of_trees
from autocast.frontend.onnx.converters.learned.scores import (
    best_of,
    constant,
    labels_of,
    of_both,
    one_of,
    transform_of,
    transformed,
)
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, number, shape

op = relax.op

_COMPARISONS: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "BRANCH_EQ": op.equal,
    "BRANCH_GT": op.greater,
    "BRANCH_GTE": op.greater_equal,
    "BRANCH_LEQ": op.less_equal,
    "BRANCH_LT": op.less,
    "BRANCH_NEQ": op.not_equal,
}


def _leaves(node: Node, forest: Forest) -> relax.Expr:
    """The number of the node that each row ends at in each tree, (rows, trees)."""
    kind = str(forest.thresholds.dtype)
    x = node.cast(node[0], kind)
    x = x if len(shape(x)) == 2 else node.emit(op.reshape(x, [1, *shape(x)]))
    roots = constant(forest.roots, "int64")
    at = node.emit(op.broadcast_to(roots, [shape(x)[0], len(forest.roots)]))
    features, thresholds = constant(forest.features, "int64"), constant(forest.thresholds, kind)
    children = constant(np.stack([forest.otherwise, forest.then], 1).reshape(-1), "int64")
    for _ in range(forest.depth):
        value = node.emit(op.gather_elements(x, _at(node, features, at), axis=1))
        goes = node.emit(_goes(node, forest, at, value, _at(node, thresholds, at)))
        place = op.add(op.multiply(at, relax.const(2, "int64")), node.cast(goes, "int64"))
        at = _at(node, children, node.emit(place))
    return at


def _at(node: Node, table: relax.Expr, places: relax.Expr) -> relax.Expr:
    return node.emit(op.take(table, places, axis=0, mode="clip"))


def _goes(node: Node, forest: Forest, at: relax.Expr, value: relax.Expr, threshold: relax.Expr) -> relax.Expr:
    """Whether each row goes on to the first child of the node that it is at."""
    kinds = sorted(set(forest.modes) - {LEAF})
    unknown = [kind for kind in kinds if kind not in _COMPARISONS]
    node.refuse(f"a tree with {', '.join(unknown)}", bool(unknown), f"expected {', '.join(_COMPARISONS)}")
    goes = relax.const(False)
    for kind in kinds:
        compared = node.emit(_COMPARISONS[kind](value, threshold))
        if len(kinds) > 1:
            is_kind = _at(node, constant(np.array(forest.modes) == kind, "bool"), at)
            compared = node.emit(op.logical_and(compared, is_kind))
        goes = compared if kind == kinds[0] else node.emit(op.logical_or(goes, compared))
    if forest.missing.any():
        is_missing = op.logical_and(op.isnan(value), _at(node, constant(forest.missing, "bool"), at))
        goes = node.emit(op.logical_or(goes, is_missing))
    return goes


def _sums(node: Node, forest: Forest, aggregate: str = "SUM") -> relax.Expr:
    """What the leaves say of each target, over all trees, (rows, targets)."""
    known = ("AVERAGE", "MAX", "MIN", "SUM")
    node.refuse(f"aggregate_function={aggregate!r}", aggregate not in known, f"expected one of {', '.join(known)}")
    of_leaves = _at(node, constant(forest.weights, str(forest.weights.dtype)), _leaves(node, forest))
    if aggregate in ("MAX", "MIN"):
        hint = "expected a weight of each target in each leaf"
        node.refuse(f"{aggregate} over leaves without a weight", not forest.is_full, hint)
        return node.emit((op.max if aggregate == "MAX" else op.min)(of_leaves, axis=[1]))
    total = node.emit(op.sum(of_leaves, axis=[1]))
    if aggregate == "AVERAGE":
        total = node.emit(op.divide(total, number(float(len(forest.roots)), total)))
    return total


def _based(node: Node, sums: relax.Expr, base: np.ndarray) -> relax.Expr:
    return node.emit(op.add(sums, constant(base, dtype(sums)))) if base.size else sums


def _regressed(node: Node, forest: Forest, aggregate: str, transform: str) -> relax.Expr:
    scores = _based(node, _sums(node, forest, aggregate), forest.base)
    is_alone = forest.weights.shape[1] == 1 and transform != "NONE"
    node.refuse(f"{transform} of one target", is_alone, "expected NONE, which is what onnxruntime does then")
    return transformed(node, scores, transform)


def _regressor(node: Node) -> relax.Expr:
    forest = of_nodes(node, "target", int(node.attributes["n_targets"]))
    scores = _regressed(node, forest, str(node.attributes.get("aggregate_function", "SUM")), transform_of(node))
    return scores if "target_weights_as_tensor" in node.attributes else node.cast(scores, "float32")


def _classifier(node: Node) -> relax.Expr:
    """Of two classes all leaves weigh the first: a share above a half, or what is positive, is the second."""
    labels, transform = labels_of(node, "classlabels_int64s"), transform_of(node)
    classes = shape(labels)[0]
    forest = of_nodes(node, "class", classes)
    if classes == 2:
        is_usual = forest.weighed.tolist() == [0] and forest.base.size < 2
        hint = "on these ONNX and onnxruntime do not agree; expected weights of class 0, and at most one base value"
        node.refuse("a classifier of two classes whose leaves weigh both, or the second,", not is_usual, hint)
        one = replace(forest, weights=forest.weights[:, :1])
        score = node.cast(_based(node, _sums(node, one), forest.base), "float32")
        is_share = bool((forest.weights >= 0).all())
        label = one_of(node, labels, node.emit(op.greater(score, number(0.5 if is_share else 0.0, score))))
        return relax.Tuple([label, of_both(node, score, transform, is_share)])
    scores = node.cast(_based(node, _sums(node, forest), forest.base), "float32")
    return relax.Tuple([best_of(node, labels, scores), transformed(node, scores, transform)])


def _ensemble(node: Node) -> relax.Expr:
    """`TreeEnsemble`, whose numbers of functions are places in these tuples."""
    asked = node.attributes
    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    transform = int(asked.get("post_transform", 0))
    node.refuse(f"post_transform={transform}", transform >= len(transforms), f"expected 0 to {len(transforms) - 1}")
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX")[int(asked.get("aggregate_function", 1))]
    return node.cast(_regressed(node, of_trees(node), aggregate, transforms[transform]), dtype(node[0]))


CONVERTERS: dict[str, Converter] = {
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
