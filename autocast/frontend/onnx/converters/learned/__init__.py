"""Operators of classical machine learning (`ai.onnx.ml`), as scikit-learn's converters write them."""

from __future__ import annotations

from autocast.frontend.onnx.converters.learned import features, linear, support_vectors, trees
from autocast.frontend.onnx.converters.node import Converter

CONVERTERS: dict[str, Converter] = {
    f"ai.onnx.ml.{name}": converter
    for family in (features, linear, support_vectors, trees)
    for name, converter in family.CONVERTERS.items()
}
