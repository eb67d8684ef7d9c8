"""Operators that compute each element by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import FUNCTION, Tensor, elementwise, is_float

_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: np.ndarray) -> np.ndarray:
    """The error function."""
    return np.asarray(_erf(x), np.float64) if x.size else x.astype(np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution."""
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The usual approximation of `gelu`."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def selu(x: np.ndarray) -> np.ndarray:
    """The scaled exponential unit."""
    return np.asarray(1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))))


#: Exact but for how they are stored.
_EXACT: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs,
    "negative": np.negative,
    "sign": np.sign,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "nn.relu": lambda x: np.maximum(x, 0),
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_ROUNDED: dict[str, Callable[..., np.ndarray]] = {
    "sqrt": np.sqrt,
    "square": np.square,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}
_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "cosh": np.cosh,
    "erf": erf,
    "exp": np.exp,
    "log": np.log,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sinh": np.sinh,
    "tanh": np.tanh,
    "nn.selu": selu,
    "power": np.power,
    "atanh": np.arctanh,
    "nn.silu": lambda x: x * sigmoid(x),
    "nn.log1p": np.log1p,
    "nn.expm1": np.expm1,
}
_COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
}
_INTEGER: dict[str, Callable[..., np.ndarray]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


def _register(table: dict[str, Callable[..., np.ndarray]], units: float) -> None:
    for name, function in table.items():

        @operator(f"relax.{name}", units=units)
        def compute(call: relax.Call, *operands: Any, function: Callable[..., np.ndarray] = function) -> Tensor:
            return elementwise(function, *map(tensor, operands), dtype=dtype_of(call))


_register(_EXACT, 0)
_register(_ROUNDED, 1)
_register(_FUNCTIONS, FUNCTION)
_register(_COMPARISONS, 0)


def tensor(value: Any) -> Tensor:
    """An operand that may be a number."""
    return (
        value if isinstance(value, Tensor) else Tensor.exact(value, "float64" if isinstance(value, float) else "int64")
    )


for _name, _function in _INTEGER.items():

    @operator(f"relax.{_name}", units=0)
    def _bits(call: relax.Call, *operands: Tensor, function: Callable[..., np.ndarray] = _function) -> Tensor:
        unsure = sum(operand.error > 0 for operand in operands)
        return Tensor.of(function(*[x.value for x in operands]), np.where(unsure, np.inf, 0.0), dtype_of(call))


@operator("relax.equal", "relax.not_equal", units=0)
def _equal(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    error = x.error + y.error
    unsure = (error > 0) & (np.abs(np.subtract(x.value, y.value, dtype=np.float64)) <= error)
    value = x.value == y.value if call.op.name == "relax.equal" else x.value != y.value
    return Tensor.of(value, unsure.astype(float), "bool")


@operator("relax.isnan", "relax.isinf", "relax.isfinite", units=0)
def _is(call: relax.Call, x: Tensor) -> Tensor:
    function = {"relax.isnan": np.isnan, "relax.isinf": np.isinf, "relax.isfinite": np.isfinite}[call.op.name]
    return Tensor.of(function(x.value), np.isinf(x.error).astype(float), "bool")


@operator("relax.sin", "relax.cos", units=FUNCTION)
def _sine(call: relax.Call, x: Tensor) -> Tensor:
    value = (np.sin if call.op.name == "relax.sin" else np.cos)(x.value)
    # Near a zero the error is that of the reduced angle.
    return Tensor.of(value, np.minimum(x.error + 2.0**-23 * (1 + np.abs(x.value)), 2.0), x.dtype)


@operator("relax.tan", units=2 * FUNCTION)
def _tan(call: relax.Call, x: Tensor) -> Tensor:
    result = elementwise(np.tan, x)
    pole = np.abs(np.cos(x.value)) < 4 * (x.error + 2.0**-22 * (1 + np.abs(x.value)))
    near = 2.0**-22 * (1 + result.value**2) * (1 + np.abs(x.value))
    return Tensor.of(result.value, np.where(pole, np.inf, result.error + near), x.dtype)


@operator("relax.nn.gelu", "relax.nn.gelu_tanh", units=FUNCTION)
def _gelu(call: relax.Call, x: Tensor) -> Tensor:
    result = elementwise(gelu if call.op.name == "relax.nn.gelu" else gelu_tanh, x)
    # As in torch: 1 + erf(x) cancels for negative x.
    return Tensor.of(result.value, result.error + 2.0**-22 * np.abs(x.value), x.dtype)


@operator("relax.log_add_exp", units=FUNCTION)
def _log_add_exp(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    result = elementwise(np.logaddexp, x, y)
    # The larger of both and a logarithm, which may cancel.
    size = np.maximum(np.abs(x.value), np.abs(y.value))
    return Tensor.of(result.value, result.error + 2.0**-22 * size, x.dtype)


@operator("relax.round", units=0)
def _round(call: relax.Call, x: Tensor) -> Tensor:
    result = elementwise(np.rint, x)
    tie = np.abs(np.abs(x.value - np.floor(x.value)) - 0.5) <= x.error
    return Tensor.of(result.value, np.where(tie & (x.error > 0), np.maximum(result.error, 1), result.error), x.dtype)


@operator("relax.ewise_fma", "relax.nn.gated_add")
def _multiply_add(call: relax.Call, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return elementwise(np.add, elementwise(np.multiply, x, y).rounded(None), z)


@operator("relax.divide")
def divide(call: relax.Call | None, x: Tensor, y: Tensor, dtype: str | None = None) -> Tensor:
    """A quotient, of whole numbers too."""
    x, y = tensor(x), tensor(y)
    dtype = dtype or (dtype_of(call) if call is not None else x.dtype)
    if not is_float(dtype):
        return elementwise(lambda a, b: np.trunc(a / np.where(b == 0, np.inf, b)).astype(np.int64), x, y, dtype=dtype)
    result = elementwise(np.divide, x, y, dtype=dtype)
    poles = (np.abs(y.value) <= y.error) & (y.error > 0)
    return Tensor.of(result.value, np.where(poles, np.inf, result.error), dtype)


@operator("relax.floor_divide", "relax.floor_mod", "relax.mod", units=1)
def _modulo(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    name, floats = call.op.name, is_float(dtype_of(call))
    function = {"relax.floor_divide": np.floor_divide, "relax.floor_mod": np.mod, "relax.mod": np.fmod}[name]
    result = elementwise(function, x, y, dtype=dtype_of(call))
    # The quotient itself is rounded before it is cut off.
    with np.errstate(all="ignore"):
        quotient = np.abs(x.value / np.where(y.value == 0, 1, y.value))
        slack = quotient * (2.0**-22 if floats else 0) + (x.error + quotient * y.error) / np.maximum(
            np.abs(y.value), 1e-300
        )
        crosses = (np.abs(quotient - np.rint(quotient)) <= slack) & (floats | (slack > 0))
    step = 1.0 if name == "relax.floor_divide" else np.abs(y.value)
    error = result.error + (
        0 if name == "relax.floor_divide" else quotient * y.error + 2.0**-23 * quotient * np.abs(y.value) * floats
    )
    error = np.where(crosses, np.maximum(error, step + error), error)
    unsure = (np.abs(y.value) <= y.error) & (y.error > 0)
    return Tensor.of(result.value, np.where(unsure | ((y.value == 0) & floats), np.inf, error), dtype_of(call))


@operator("relax.atan2", units=FUNCTION)
def _atan2(call: relax.Call, y: Tensor, x: Tensor) -> Tensor:
    result = elementwise(np.arctan2, y, x)
    origin = (np.abs(y.value) <= y.error) & (x.value <= x.error)  # the cut along negative numbers
    return Tensor.of(result.value, np.where(origin & (y.error + x.error > 0), 7.0, result.error), y.dtype)


@operator("relax.clip", units=0)
def _clip(call: relax.Call, x: Tensor, low: float, high: float) -> Tensor:
    return elementwise(lambda a: np.clip(a, low, high), x)


@operator("relax.nn.hardtanh", units=0)
def _hardtanh(call: relax.Call, x: Tensor) -> Tensor:
    return elementwise(lambda a: np.clip(a, float(call.attrs.low), float(call.attrs.high)), x)


@operator("relax.nn.leakyrelu")
def _leaky_relu(call: relax.Call, x: Tensor) -> Tensor:
    alpha = float(call.attrs.alpha)
    return elementwise(lambda a: np.where(a > 0, a, alpha * a), x)


@operator("relax.nn.prelu")
def _prelu(call: relax.Call, x: Tensor, alpha: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % x.value.ndim
    shape = [-1 if i == axis else 1 for i in range(x.value.ndim)]
    if alpha.value.size == 1:
        shape = [1] * x.value.ndim
    alpha = Tensor(alpha.value.reshape(shape), alpha.error.reshape(shape), alpha.dtype)
    return elementwise(lambda a, b: np.where(a > 0, a, a * b), x, alpha)


@operator("relax.nn.softplus", units=FUNCTION)
def _softplus(call: relax.Call, x: Tensor) -> Tensor:
    beta = float(call.attrs.beta)
    return elementwise(lambda a: np.logaddexp(0, beta * a) / beta, x)


@operator("relax.astype")
def _astype(call: relax.Call, x: Tensor) -> Tensor:
    return cast(x, dtype_of(call))


@operator("relax.wrap_param")
def _wrap_param(call: relax.Call, x: Tensor) -> Tensor:
    return cast(x, dtype_of(call))


def cast(x: Tensor, dtype: str) -> Tensor:
    """Values in another dtype."""
    if dtype == "bool":
        unsure = (np.abs(x.value.astype(np.float64)) <= x.error) & (x.error > 0)
        return Tensor.of(x.value != 0, unsure.astype(float), dtype)
    if x.is_float and not is_float(dtype):
        info = np.iinfo(dtype)
        outside = (
            (x.value + x.error >= info.max) | (x.value - x.error <= min(info.min, -1e-300)) | ~np.isfinite(x.value)
        )
        value = np.where(outside, 0, x.value)
        result = elementwise(np.trunc, Tensor(value, np.where(outside, 0, x.error), x.dtype))
        return Tensor.of(result.value, np.where(outside, np.inf, result.error), dtype)
    return Tensor.of(x.value, x.error, dtype)


@operator("relax.where", units=None)
def _where(call: relax.Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    value = np.where(condition.value, x.value, y.value)
    error = np.where(condition.value, x.error, y.error)
    with np.errstate(invalid="ignore"):
        either = np.maximum(x.error, y.error) + np.abs(np.subtract(x.value, y.value, dtype=np.float64))
    error = np.where(condition.error > 0, either, error)
    return Tensor.of(value, error, dtype_of(call))


@operator("relax.outer")
def _outer(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    column = Tensor(x.value[:, None], x.error[:, None], x.dtype)
    return elementwise(np.multiply, column, y, dtype=dtype_of(call))


@operator("relax.nn.dropout", units=None)
def _dropout(call: relax.Call, x: Tensor) -> Any:
    return (x, Tensor.of(np.ones(x.shape), np.inf, x.dtype))
