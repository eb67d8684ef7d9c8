"""Evaluate shapes: symbolic dimensions become numbers once the inputs' sizes are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import tvm
from tvm import tirx

#: Symbolic dimension -> its value in this call.
Sizes = Mapping[tirx.Var, int]


def evaluate(dimension: object, sizes: Sizes) -> int | None:
    """The value of one dimension (int or PrimExpr) under `sizes`; None where a variable has no value there."""
    if isinstance(dimension, int | np.integer | tirx.IntImm):
        return int(dimension)
    if isinstance(dimension, tirx.Var):
        return sizes.get(dimension)
    analyzer = tvm.sym.Analyzer()
    for variable in tirx.analysis.undefined_vars(dimension):
        if variable not in sizes:
            return None
        analyzer.bind(variable, tirx.const(sizes[variable], variable.ty))
    result = analyzer.simplify(dimension)
    return int(result) if isinstance(result, tirx.IntImm) else None


def evaluate_all(dimensions: Iterable[object], sizes: Sizes) -> tuple[int, ...] | None:
    """The values of all dimensions of a shape; None where one of them is not known."""
    values = tuple(evaluate(dimension, sizes) for dimension in dimensions)
    return None if None in values else values  # type: ignore[return-value]


def tensor_bytes(shape: Iterable[int], dtype: object) -> int:
    """Bytes of a dense tensor of `shape`; a bool takes a byte, and a vector dtype counts all its lanes."""
    element = tvm.DataType(str(dtype))
    bits = 8 if str(dtype) == "bool" else element.bits * element.lanes
    return (prod(shape) * bits + 7) // 8
