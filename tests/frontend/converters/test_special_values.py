"""Functions of torch, imported and compiled, at NaN, infinities, zeros, subnormal, tiny and huge numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from autocast.frontend import from_torch
from autocast.vm import compile as compile_model
from tests.frontend.helpers import Calls
from tests.special_values import pairs, values, wrong

_OF_TORCH = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor isfinite isinf isnan log log10 log1p"
    " log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc"
)
_OF_NN = (
    "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus softsign"
    " hardshrink softshrink tanhshrink"
)
UNARY: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in _OF_TORCH.split()},
    **{name: getattr(F, name) for name in _OF_NN.split()},
    "clamp": lambda x: x.clamp(-1.5, 2.0),
    "clamp from below": lambda x: x.clamp(min=0.5),
    "clamp by what is no number": lambda x: x.clamp(math.nan, 1.0),
    "hardtanh by what is no number": lambda x: F.hardtanh(x, -1.0, math.nan),
    "divide and round down": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "divide and round to zero": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "masked_fill": lambda x: x.masked_fill(x > 1, -3.0),
    "multiply and add": lambda x: x * 1.1 + 0.3,
    "remainder of 3": lambda x: x % 3.0,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "to an integer": lambda x: x.to(torch.int32),
}
_OF_TWO = "maximum minimum fmod remainder floor_divide logaddexp xlogy atan2 pow eq ne lt le gt ge"
BINARY: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in _OF_TWO.split()},
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp from the end": lambda x, y: torch.lerp(x, y, 0.7),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "where": lambda x, y: torch.where(x < y, x, y),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("functions", [UNARY, BINARY], ids=["one tensor", "two tensors"])
def test_functions_answer_as_torch_does(functions: dict[str, Callable], dtype: str) -> None:
    operands = (values(dtype),) if functions is UNARY else pairs(dtype)
    model = from_torch(Calls(lambda *x: tuple(function(*x) for function in functions.values())), operands)
    results = compile_model(model)(*operands)
    found = [
        line
        for (name, function), got in zip(functions.items(), results, strict=True)
        for line in wrong(name, got, function(*operands), operands)
    ]
    assert found == []


def test_medians_and_buckets_know_where_nan_is() -> None:
    x = torch.randn(4, 7, 5)
    x[1, 3, 2] = x[1, 5, 2] = x[0, 6] = float("nan")

    def found(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = (torch.bucketize(x, torch.linspace(-1, 1, 5), right=right) for right in (False, True))
        return (x.median(), x.nanmedian(), *x.median(1), *x.nanmedian(1), *places)

    results = compile_model(from_torch(Calls(found), (x,), fallback="error"))(x)
    for got, expected in zip(results, found(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
