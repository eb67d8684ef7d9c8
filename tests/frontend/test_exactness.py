"""Functions of torch, imported and compiled, against float64: in float32, and in 16 bits for every number."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from autocast.frontend import from_torch
from autocast.vm import compile as compile_model
from tests.exactness import EXACT, SHARE, UNITS, inputs, misses, units
from tests.frontend.helpers import Calls

_OF_TORCH = (
    *("acosh", "asinh", "atan", "atanh", "cosh", "deg2rad", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p"),
    *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
)
_OF_NN = ("celu", "elu", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu6", "selu", "silu")
#: Functions of a tensor.
FUNCTIONS = {
    **{name: getattr(torch, name) for name in _OF_TORCH},
    **{name: getattr(F, name) for name in (*_OF_NN, "softplus", "softsign")},
    "celu of alpha": lambda x: F.celu(x, 0.5),
    "elu of alpha": lambda x: F.elu(x, 0.75),
    "softplus of beta": lambda x: F.softplus(x, 2.0, 200.0),
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none"),
    "xlogy": lambda x: torch.xlogy(x, x),
    "xlog1py": lambda x: torch.special.xlog1py(x, x),
    "power": lambda x: x**1.5,
    "power of a number": lambda x: 10.0**x,
    "multiply by a number": lambda x: x * 1.1,
    "divide by a number": lambda x: x / 0.3,
}
#: Where torch's own float64 is not exact, says NaN where infinities cancel, or takes a number in float64, not float32.
_EXACT = {
    **{name: EXACT[name] for name in ("elu", "mish", "selu", "silu", "sigmoid", "softplus")},
    "celu": EXACT["elu"],
    "multiply by a number": lambda x: x.astype(np.float32) * np.float32(1.1),
    "divide by a number": lambda x: x.astype(np.float32) / np.float32(0.3),
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "logaddexp": lambda x: np.logaddexp(0, x),
    "softplus of beta": lambda x: np.logaddexp(0, 2 * x) / 2,
    "binary_cross_entropy": lambda x: np.where(np.isinf(x), np.nan, np.logaddexp(0, -x)),
}


def _exact(name: str, x: np.ndarray) -> np.ndarray:
    return _EXACT[name](x) if name in _EXACT else FUNCTIONS[name](torch.from_numpy(x)).numpy()


@cache
def results(dtype: str) -> dict[str, np.ndarray]:
    x = inputs(dtype)
    low = dtype == "bfloat16"
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if low else torch.from_numpy(x)
    model = from_torch(Calls(lambda x: tuple(function(x) for function in FUNCTIONS.values())), (tensor,))
    arrays = [
        y.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if low else y.numpy() for y in compile_model(model)(tensor)
    ]
    return dict(zip(FUNCTIONS, arrays, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_results_are_within_four_units_in_the_last_place(name: str) -> None:
    x, got = inputs("float32"), results("float32")[name]
    errors = units(x, got, lambda x: _exact(name, x))
    if name == "mish":  # where e^x is subnormal, and x times as much is lost
        errors = np.where(x < -87, errors / 64, errors)
    worst = errors.argmax()
    assert errors[worst] <= UNITS, f"{name}({x[worst]!r}) = {got[worst]!r} is off by {errors[worst]} units"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bit_results_are_the_nearest_numbers(name: str, dtype: str) -> None:
    x, got = inputs(dtype), results(dtype)[name]
    missed = misses(x, got, lambda x: _exact(name, x))
    places = list(zip(x[missed][:5].tolist(), got[missed][:5].tolist(), strict=True))
    assert missed.mean() <= 1 - SHARE, f"{name} misses {missed.mean():.2%}, such as {places}"
