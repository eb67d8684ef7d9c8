"""What is made of features before a model sees them: `Scaler`, `Imputer`, `OneHotEncoder` and others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from autocast.frontend.onnx.converters.learned.scores import constant
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, number, shape

op = relax.op


def _scaler(node: Node) -> relax.Expr:
    x = node.cast(node[0], "float32")
    offset, scale = (constant(node.attributes.get(name, (default,))) for name, default in (("offset", 0), ("scale", 1)))
    return node.emit(op.multiply(op.subtract(x, offset), scale))


def _normalizer(node: Node) -> relax.Expr:
    """Rows over their largest number, the sum of their sizes, or their length; a row of zeros stays."""
    x, norm = node.cast(node[0], "float32"), str(node.attributes.get("norm", "MAX"))
    node.refuse(f"norm={norm!r}", norm not in ("L1", "L2", "MAX"), "expected L1, L2 or MAX")
    if norm == "MAX":
        size = op.max(x, axis=[-1], keepdims=True)
    elif norm == "L1":
        size = op.sum(op.abs(x), axis=[-1], keepdims=True)
    else:
        size = op.sqrt(op.sum(op.multiply(x, x), axis=[-1], keepdims=True))
    size = node.emit(size)
    is_zero = op.equal(size, number(0.0, size))
    return node.emit(op.divide(x, op.where(is_zero, number(1.0, size), size)))


def _binarizer(node: Node) -> relax.Expr:
    x = node[0]
    return node.cast(op.greater(x, number(float(node.attributes.get("threshold", 0.0)), x)), dtype(x))


def _imputer(node: Node) -> relax.Expr:
    """Others in place of NaN, or of the number that says that there is none: one for all columns, or one for each."""
    x = node[0]
    kind = "float" if "float" in dtype(x) else "int64"
    values = constant(node.attributes.get(f"imputed_value_{kind}s", ()), dtype(x))
    absent = node.attributes.get(f"replaced_value_{kind}", 0)
    is_absent = op.isnan(x) if np.isnan(absent) else op.equal(x, number(absent, x))
    return node.emit(op.where(is_absent, values, x))


def _one_hot(node: Node) -> relax.Expr:
    """Along a new last axis, 1 for the category that an element is, of those that are numbers.

    What is no category has none, also where `zeros=0` says that a runtime fails.
    """
    node.refuse("a OneHotEncoder of texts", "cats_int64s" not in node.attributes, "expected cats_int64s")
    x = node.cast(node[0], "int64")
    kinds = constant(node.attributes["cats_int64s"], "int64")
    return node.cast(op.equal(op.expand_dims(x, -1), kinds), "float32")


def _label_encoder(node: Node) -> relax.Expr:
    """Numbers in place of others; the default for those that are not among the keys."""
    keys, values, default = (_said(node, what) for what in ("keys", "values", "default"))
    if default is None:
        default = np.array(-1 if values.dtype.kind in "iu" else 0, values.dtype)
    x = node.cast(node[0], str(keys.dtype))
    axes = len(shape(x))
    is_key = node.emit(op.equal(op.expand_dims(x, -1), constant(keys, str(keys.dtype))))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        is_nan = op.logical_and(op.expand_dims(op.isnan(x), -1), constant(np.isnan(keys), "bool"))
        is_key = node.emit(op.logical_or(is_key, is_nan))
    place = node.emit(op.argmax(node.cast(is_key, "int32"), -1))
    found = node.emit(op.max(node.cast(is_key, "int32"), axis=[axes]))
    chosen = op.take(constant(values, str(values.dtype)), place, mode="clip", axis=0)
    rest = relax.const(default.reshape(()), str(values.dtype))
    return node.emit(op.where(op.greater(found, relax.const(0, "int32")), chosen, rest))


def _said(node: Node, what: str) -> Any:
    """The keys, the values or the default of a `LabelEncoder`; None for a default that is left out."""
    is_one = what == "default"
    texts = f"{what}_string{'' if is_one else 's'}"
    node.refuse("a LabelEncoder of texts", bool(node.attributes.get(texts)) and not is_one, "expected numbers")
    if tensor := node.attributes.get(f"{what}_tensor"):
        array = numpy_helper.to_array(tensor)
        node.refuse("a LabelEncoder of texts", array.dtype.kind not in "iuf", "expected numbers")
        return array
    for kind, to in (("float", "float32"), ("int64", "int64")):
        numbers = node.attributes.get(f"{what}_{kind}{'' if is_one else 's'}")
        if numbers is not None and not is_one:
            return np.array(numbers, to)
        values = "values_floats" if kind == "float" else "values_int64s"
        if numbers is not None and values in node.attributes:
            return np.array(numbers, to)
    return None


def _chosen_columns(node: Node) -> relax.Expr:
    """Elements of the last axis, by their numbers; those of a vector are a row."""
    x, places = node[0], node.cast(node[1], "int64")
    places = node.reshaped(places, [math.prod(shape(places))])
    x = x if len(shape(x)) > 1 else node.emit(op.reshape(x, [1, *shape(x)]))
    return node.emit(op.take(x, places, axis=len(shape(x)) - 1, mode="clip"))


def _joined(node: Node) -> relax.Expr:
    """The columns of all inputs, of which vectors are rows, beside one another."""
    inputs = [node.cast(node[at], "float32") for at in range(len(node.inputs))]
    rows = [x if len(shape(x)) == 2 else node.emit(op.reshape(x, [1, *shape(x)])) for x in inputs]
    return node.emit(op.concat(rows, axis=1))


CONVERTERS: dict[str, Converter] = {
    "ArrayFeatureExtractor": _chosen_columns,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _joined,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot,
    "Scaler": _scaler,
}
