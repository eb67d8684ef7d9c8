"""Functions of single elements. Torch, too, computes those of 16 bits in float32 and rounds once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from autocast.ir import items, number_of
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype


def _unary(function: Callable[[Any], Any]) -> Row:
    return lambda asked: function(asked.args[0])


def _binary(function: Callable[[Any, Any], Any]) -> Row:
    return lambda asked: function(*asked.args)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Row:
    """A function that takes numbers in place of tensors: a literal stands in the code as it is."""

    def row(asked: Asked) -> Value:
        numbers = [number_of(expr) if expr.ty.ndim == 0 else None for expr in items(asked.call.args)]
        if None not in numbers or "float" not in str(asked.call.ty.dtype):
            return function(*asked.args)
        return function(*(arg if number is None else number for arg, number in zip(asked.args, numbers, strict=True)))

    return row


def _astype(asked: Asked) -> Value:
    return asked.args[0].to(torch_dtype(str(asked.attrs.dtype)))


def _clip(asked: Asked) -> Value:
    x, low, high = asked.args
    if "int" in str(asked.call.ty.dtype):  # which stay integers in our kernels
        low, high = math.trunc(low), math.trunc(high)
    return torch.clamp(x, low, high)


def _where(asked: Asked) -> Value:
    condition, x, y = asked.args
    return torch.where(condition, x, y)


def _division(function: Callable[[Any, Any], Any], whole: Callable[[Any, Any], Any], *, quotient: bool) -> Row:
    """`function`, and of integers `whole`, which raises or ends the process where the divisor is 0 or -1.

    As our kernels have it, a quotient by 0 is 0, and the least integer by -1 is itself; there is no remainder.
    """

    def row(asked: Asked) -> Value:
        x, y = asked.args
        dtype = str(asked.call.ty.dtype)
        if "float" in dtype:
            return function(x, y)
        if number_of(asked.call.args[1]) not in (None, 0, -1):
            return whole(x, y)
        unusual = torch.eq(y, 0)
        if not dtype.startswith("uint"):
            unusual = torch.logical_or(unusual, torch.eq(y, -1))
        result = whole(x, torch.where(unusual, 1, y))
        return torch.where(unusual, x * y, result) if quotient else result

    return row


def _gated_add(asked: Asked) -> Value:
    gate, x, y = (asked.wide(i) for i in range(3))
    return torch.addcmul(y, gate, x).to(asked.dtype)


def _prelu(asked: Asked) -> Value:
    x, alpha = asked.args
    shape = [1] * asked.rank()
    shape[asked.axis()] = -1
    return torch.where(x > 0, x, x * alpha.reshape(shape))


def _log_add_exp(asked: Asked) -> Value:
    return asked.stored(torch.logaddexp(asked.wide(0), asked.wide(1)))


_LOGICAL = {"and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor}
_BITWISE = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}

ROWS: dict[str, Row] = {
    **{
        name: _unary(getattr(torch, name))
        for name in (
            *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor"),
            *("isfinite", "isinf", "isnan", "log", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh"),
            *("sqrt", "square", "tan", "tanh", "trunc", "logical_not", "bitwise_not"),
        )
    },
    **{
        name: _arithmetic(function)
        for name, function in {
            "add": lambda x, y: x + y,
            "subtract": lambda x, y: x - y,
            "multiply": lambda x, y: x * y,
            "power": torch.pow,
        }.items()
    },
    **{
        name: _binary(function)
        for name, function in {
            "maximum": torch.maximum,
            "minimum": torch.minimum,
            "atan2": torch.atan2,
            "equal": torch.eq,
            "not_equal": torch.ne,
            "less": torch.lt,
            "less_equal": torch.le,
            "greater": torch.gt,
            "greater_equal": torch.ge,
            "left_shift": torch.bitwise_left_shift,
            "right_shift": torch.bitwise_right_shift,
        }.items()
    },
    **{f"logical_{name}": _binary(function) for name, function in _LOGICAL.items()},
    **{f"bitwise_{name}": _binary(function) for name, function in _BITWISE.items()},
    "divide": _division(lambda x, y: x / y, partial(torch.div, rounding_mode="trunc"), quotient=True),
    "floor_divide": _division(torch.floor_divide, torch.floor_divide, quotient=True),
    "floor_mod": _division(torch.remainder, torch.remainder, quotient=False),
    "mod": _division(torch.fmod, torch.fmod, quotient=False),
    "astype": _astype,
    "clip": _clip,
    "where": _where,
    "log_add_exp": _log_add_exp,
    "ewise_fma": lambda asked: asked.stored(torch.addcmul(asked.wide(2), asked.wide(0), asked.wide(1))),
    "nn.relu": _unary(F.relu),
    "nn.gelu": _unary(F.gelu),
    "nn.gelu_tanh": lambda asked: F.gelu(asked.args[0], approximate="tanh"),
    "nn.silu": _unary(F.silu),
    "nn.selu": _unary(F.selu),
    "nn.log1p": _unary(torch.log1p),
    "nn.expm1": _unary(torch.expm1),
    "nn.leakyrelu": lambda asked: F.leaky_relu(asked.args[0], float(asked.attrs.alpha)),
    "nn.hardtanh": lambda asked: F.hardtanh(asked.args[0], float(asked.attrs["low"]), float(asked.attrs["high"])),
    "nn.softplus": lambda asked: F.softplus(asked.args[0], float(asked.attrs.beta), float(asked.attrs.threshold)),
    "nn.prelu": _prelu,
    "nn.gated_add": _gated_add,
}
