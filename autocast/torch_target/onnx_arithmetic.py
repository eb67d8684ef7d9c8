"""Arithmetic in ONNX that torch's exporter lacks, or has for some numbers alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def arithmetic_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write them, in the operators `op` of an opset."""
    import onnx_ir as ir

    def number(value: float, like: Any) -> Any:
        return op.CastLike(op.Constant(value_float=value), like)

    def remainder(x: Any, other: Any) -> Any:  # the exporter's own takes no sizes, and multiplies what it divided
        is_number = isinstance(other, int | float)
        divisor = op.Constant(value=ir.tensor(other, dtype=x.dtype)) if is_number else op.CastLike(other, x)
        if x.dtype.is_integer():
            return op.Mod(x, divisor)
        rest, zero = op.Mod(x, divisor, fmod=1), number(0.0, x)  # of the sign of x
        is_other_side = op.And(op.Xor(op.Less(rest, zero), op.Less(divisor, zero)), op.Not(op.Equal(rest, zero)))
        return op.Where(is_other_side, op.Add(rest, divisor), rest)

    def floor_divide(size: Any, by: Any) -> Any:  # the exporter's own rounds towards zero: -(-n // 2)
        return op.Div(op.Sub(size, op.Mod(size, by)), by)

    def signbit(x: Any) -> Any:  # the exporter's own is a vector for a number, and not true of -0
        zero = number(0.0, x)
        is_negative = op.Less(x, zero)
        return is_negative if x.dtype.is_integer() else op.Or(is_negative, op.Less(op.Reciprocal(x), zero))

    def relu(x: Any) -> Any:  # onnxruntime has no Relu of all integers
        return op.Max(x, number(0.0, x)) if x.dtype.is_integer() else op.Relu(x)

    def log1p(x: Any) -> Any:  # the exporter's own adds 1, of which the digits of small numbers are lost
        y = op.Add(x, number(1.0, x))
        seen = op.Sub(y, number(1.0, x))  # what was added: Log(y) is of that
        scaled = op.Where(op.Equal(seen, x), op.Log(y), op.Mul(op.Log(y), op.Div(x, seen)))
        return op.Where(op.Equal(seen, number(0.0, x)), x, scaled)

    def logaddexp(x: Any, y: Any) -> Any:  # the exporter's own is infinite from 89 on
        largest = op.Where(op.Greater(x, y), x, y)
        distance = op.Where(op.Equal(x, y), number(0.0, x), op.Abs(op.Sub(x, y)))  # of infinite ones, too
        return op.Add(largest, log1p(op.Exp(op.Neg(distance))))

    def expm1(x: Any) -> Any:  # tanh(x / 2) is (exp(x) - 1) / (exp(x) + 1)
        return op.Mul(op.Tanh(op.Mul(x, number(0.5, x))), op.Add(op.Exp(x), number(1.0, x)))

    def product(x: Any, axes: Sequence[int], output_dtype: Any = None) -> Any:
        return op.ReduceProd(x, op.Constant(value_ints=list(axes)), keepdims=0)

    return {
        torch.ops.prims.prod.default: product,
        aten.remainder.Scalar: remainder,
        aten.remainder.Tensor: remainder,
        aten.logaddexp.default: logaddexp,
        aten.signbit.default: signbit,
        aten.relu.default: relu,
        aten.log1p.default: log1p,
        aten.expm1.default: expm1,
        operator.floordiv: floor_divide,
    }
