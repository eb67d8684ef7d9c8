"""Divisions in ONNX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch


def arithmetic_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write them, in the operators `op` of an opset."""
    import onnx_ir as ir

    def remainder(x: Any, other: Any) -> Any:  # the exporter's own takes no sizes
        is_number = isinstance(other, int | float)
        divisor = op.Constant(value=ir.tensor(other, dtype=x.dtype)) if is_number else op.CastLike(other, x)
        if x.dtype.is_integer():
            return op.Mod(x, divisor)
        return op.Sub(x, op.Mul(op.Floor(op.Div(x, divisor)), divisor))

    def floor_divide(size: Any, by: Any) -> Any:  # the exporter's own rounds towards zero: -(-n // 2)
        return op.Div(op.Sub(size, op.Mod(size, by)), by)

    return {torch.ops.aten.remainder.Scalar: remainder, operator.floordiv: floor_divide}
