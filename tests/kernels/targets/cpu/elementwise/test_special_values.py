"""Every elementwise operator of Relax at NaN, infinities, zeros, subnormal, tiny and huge numbers, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax

from autocast.operators import Kind, named, own
from tests.kernels.compiling import machine_of
from tests.kernels.modules import module
from tests.special_values import pairs, values, wrong

op, nn = relax.op, relax.op.nn

_SAME = (
    "abs ceil cos cosh erf exp floor isfinite isinf isnan negative round rsqrt sigmoid sign sin sinh sqrt square tan"
)
_SAME += " tanh trunc acos acosh asin asinh atan atanh log"


def _number(value: float, like: relax.Expr) -> relax.Expr:
    return relax.const(value, str(like.ty.dtype))


UNARY: dict[str, tuple[Callable, Callable]] = {
    **{name: (getattr(op, name), getattr(torch, name)) for name in _SAME.split()},
    **{name: (getattr(nn, name), getattr(torch, name)) for name in ("expm1", "log1p")},
    **{name: (getattr(nn, name), getattr(F, name)) for name in ("gelu", "relu", "selu", "silu", "softplus")},
    "gelu_tanh": (nn.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "softplus of beta": (lambda x: nn.softplus(x, 2.0, 20.0), lambda x: F.softplus(x, 2.0, 20.0)),
    "leakyrelu": (lambda x: nn.leakyrelu(x, 0.25), lambda x: F.leaky_relu(x, 0.25)),
    "clip": (lambda x: op.clip(x, -1.5, 2.0), lambda x: x.clamp(-1.5, 2.0)),
    "hardtanh": (lambda x: own.hardtanh(x, low=-1.5, high=2.0), lambda x: F.hardtanh(x, -1.5, 2.0)),
    **{
        f"power {n}": (lambda x, n=n: op.power(x, _number(n, x)), lambda x, n=n: x**n)
        for n in (-1.0, -0.5, 0.5, 1.5, 2.0, 3.0, 4.0)
    },
    **{
        f"astype {dtype}": (
            lambda x, dtype=dtype: op.astype(x, dtype),
            lambda x, dtype=dtype: x.to(getattr(torch, dtype)),
        )
        for dtype in ("int8", "uint8", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64")
    },
}
BINARY: dict[str, tuple[Callable, Callable]] = {
    **{name: (getattr(op, name), getattr(torch, name)) for name in ("add", "subtract", "multiply", "divide", "atan2")},
    **{name: (getattr(op, name), getattr(torch, name)) for name in ("maximum", "minimum", "floor_divide", "not_equal")},
    **{name: (getattr(op, name), getattr(torch, name)) for name in ("less", "less_equal", "greater", "greater_equal")},
    "equal": (op.equal, torch.eq),
    "ewise_fma": (lambda x, y: op.ewise_fma(x, y, x), lambda x, y: (x.double() * y.double() + x.double()).to(x.dtype)),
    "floor_mod": (op.floor_mod, torch.remainder),
    "log_add_exp": (op.log_add_exp, torch.logaddexp),
    "mod": (op.mod, torch.fmod),
    "power": (op.power, torch.pow),
    "where": (lambda x, y: op.where(op.less(x, y), x, y), lambda x, y: torch.where(x < y, x, y)),
}
#: Of parameters, random numbers, and what no library has.
OTHERS = {"nn.prelu", "nn.seeded_dropout", "nn.seeded_normal", "nn.seeded_uniform", "nn.stochastic_round"}


def test_every_elementwise_operator_is_tried() -> None:
    tried = {name.split()[0] for name in (*UNARY, *BINARY)}
    assert {name.removeprefix("relax.").removeprefix("nn.") for name in named(Kind.ELEMENTWISE)} - tried == {
        name.removeprefix("nn.") for name in OTHERS
    }


def _wrong(
    functions: dict[str, tuple[Callable, Callable]], operands: tuple[torch.Tensor, ...], dtype: str
) -> list[str]:
    bodies = [body for body, _ in functions.values()]
    mod = module(lambda *x: relax.Tuple([body(*x) for body in bodies]), *[(x.shape, dtype) for x in operands])
    machine = machine_of(mod)
    results = [torch.from_dlpack(y) for y in machine["main"](*[tvm.runtime.from_dlpack(x) for x in operands])]
    expected = [function(*operands) for _, function in functions.values()]
    return [
        line
        for name, got, want in zip(functions, results, expected, strict=True)
        for line in wrong(name, got, want, operands)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_operators_of_one_tensor_answer_as_torch_does(dtype: str) -> None:
    assert _wrong(UNARY, (values(dtype),), dtype) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_operators_of_two_tensors_answer_as_torch_does(dtype: str) -> None:
    assert _wrong(BINARY, pairs(dtype), dtype) == []


def test_rounding_keeps_the_sign_of_zero() -> None:
    functions = (op.ceil, op.floor, op.negative, op.round, op.sqrt, op.trunc)
    x = torch.full((19,), -0.0)
    mod = module(lambda x: relax.Tuple([function(x) for function in functions]), (x.shape, "float32"))
    machine = machine_of(mod)
    signs = [torch.from_dlpack(y).signbit() for y in machine["main"](tvm.runtime.from_dlpack(x))]
    assert [bool(sign.all()) for sign in signs] == [function is not op.negative for function in functions]
