"""Linear models of `ai.onnx.ml`: products with the weights that their attributes are."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.learned.scores import (
    best_of,
    constant,
    labels_of,
    of_both,
    one_of,
    rows_of,
    transform_of,
    transformed,
)
from autocast.frontend.onnx.converters.node import Converter, Node, number, shape

op = relax.op


def _scores(node: Node, count: int) -> relax.Expr:
    """(rows, count)."""
    weight = np.array(node.attributes["coefficients"], "float32").reshape(count, -1)
    product = node.emit(op.matmul(rows_of(node), constant(np.ascontiguousarray(weight.T))))
    intercepts = node.attributes.get("intercepts", ())
    return node.emit(op.add(product, constant(intercepts))) if len(intercepts) else product


def _classifier(node: Node) -> relax.Expr:
    """The label of the largest score, or, of one score, the second label where it is positive; and the scores."""
    labels, transform = labels_of(node, "classlabels_ints"), transform_of(node)
    classes = shape(labels)[0]
    scores = _scores(node, len(node.attributes.get("intercepts", ())) or classes)
    if shape(scores)[1] == 1 and classes == 2:
        label = one_of(node, labels, node.emit(op.greater(scores, number(0.0, scores))))
        return relax.Tuple([label, of_both(node, scores, transform, is_share=True)])
    node.refuse(f"{shape(scores)[1]} scores of {classes} classes", shape(scores)[1] != classes, "expected one for each")
    return relax.Tuple([best_of(node, labels, scores), transformed(node, scores, transform)])


def _regressor(node: Node) -> relax.Expr:
    return transformed(node, _scores(node, int(node.attributes.get("targets", 1))), transform_of(node))


CONVERTERS: dict[str, Converter] = {"LinearClassifier": _classifier, "LinearRegressor": _regressor}
