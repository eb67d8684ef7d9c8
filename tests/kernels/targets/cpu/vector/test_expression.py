"""Every function that expressions may call, against float64, and the Relax operators that they compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from scipy import special
from tvm import relax

from autocast.kernels.matching.functions import operation
from autocast.kernels.specs.program import ProgramBuilder
from autocast.kernels.targets.cpu.elementwise.kernel import elementwise_kernel
from autocast.kernels.targets.cpu.vector.expression import FUNCTIONS
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.epilogues import ACTIVATIONS, NUMBERS
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of
from tests.kernels.targets.cpu.vector.test_vector_math import selu

SIZE = 1003


def _rounded(dtype: type) -> Callable:
    return lambda x: x.astype(np.float32).astype(dtype).astype(np.float64)


#: The same functions in float64.
REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "where": lambda condition, x, y: np.where(condition != 0, x, y),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "leakyrelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "sign": lambda x: np.where(np.isnan(x), 0.0, np.sign(x)),
    "negative": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "square": np.square,
    "cube": lambda x: x**3,
    "fourth": lambda x: x**4,
    "ewise_fma": lambda x, y, z: x * y + z,
    "unfused": lambda x: x,
    "round_bfloat16": _rounded(ml_dtypes.bfloat16),
    "round_float16": _rounded(np.float16),
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "expm1": np.expm1,
    "selu": selu,
    "erf": special.erf,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": lambda y, x: np.arctan2(y, x),
    "mod": np.fmod,
    "power": lambda x, y: np.power(x, y),
    "floor_mod": lambda x, y: torch.remainder(*map(torch.from_numpy, (x, y))).numpy(),
    "floor_divide": lambda x, y: torch.floor_divide(*map(torch.from_numpy, (x, y))).numpy(),
    "log_add_exp": lambda x, y: np.logaddexp(x, y),
    "log": np.log,
    "log1p": np.log1p,
    "softplus": lambda x: np.logaddexp(x, 0),
    "softplus_scaled": lambda x, beta, threshold: np.where(x * beta > threshold, x, np.logaddexp(x * beta, 0) / beta),
    "sin": np.sin,
    "cos": np.cos,
    **{name: function for name, function in ACTIVATIONS.items() if name is not None and name not in NUMBERS},
}
#: Functions of bits, which test_random.py tests.
ON_BITS = {"scramble", "uniform", "dropout", "stochastic_round"}
EXTREMES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 0.5, 1.5, 2.5, -0.5], np.float32)


def _operands(name: str) -> list[np.ndarray]:
    count = len(inspect.signature(REFERENCES[name]).parameters) if not isinstance(REFERENCES[name], np.ufunc) else None
    count = REFERENCES[name].nin if count is None else count
    rng = np.random.default_rng(0)
    operands = [(rng.standard_normal(SIZE) * 3).astype(np.float32) for _ in range(count)]
    for place, operand in enumerate(operands):
        # All pairs of extremes; in thirds that are small integers, many are equal and many are 0.
        pairs = np.repeat(EXTREMES, len(EXTREMES)) if place else np.tile(EXTREMES, len(EXTREMES))
        operand[: len(pairs)] = pairs
        operand[len(pairs) : 400] = np.round(operand[len(pairs) : 400])
    if name == "clip":
        operands[1], operands[2] = np.full(SIZE, -1.5, np.float32), np.full(SIZE, 1.25, np.float32)
    if name == "softplus_scaled":
        operands[1], operands[2] = np.full(SIZE, 0.5, np.float32), np.full(SIZE, 4.0, np.float32)
    if name == "exp_nonpositive":
        operands[0] = -np.abs(operands[0])
    return operands


@cache
def compiled(cpu: str) -> tvm.runtime.Module:
    functions = {}
    for name in REFERENCES:
        builder = ProgramBuilder((SIZE,))
        loads = [builder.load(builder.argument((SIZE,), "float32"), (SIZE,)) for _ in _operands(name)]
        program = builder.finish([(builder.step(name, *loads), (SIZE,), "float32")])
        functions[name] = elementwise_kernel(program, target_of(cpu), f"test_{name}")
    return compile_kernels(functions, target_of(cpu))


def test_every_function_is_tested() -> None:
    assert {*REFERENCES, *ON_BITS} == set(FUNCTIONS)


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_match_float64(name: str, cpu: str) -> None:
    operands = _operands(name)
    output = tvm.runtime.tensor(np.full(SIZE, 77, np.float32))
    compiled(cpu)[f"test_{name}"](*[tvm.runtime.tensor(operand) for operand in operands], output)
    got = output.numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.asarray(REFERENCES[name](*[operand.astype(np.float64) for operand in operands])).astype(np.float64)
        exact = np.where(np.abs(exact) > np.finfo(np.float32).max, np.sign(exact) * np.inf, exact)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        # Activations are as exact as their argument, and a sum as what is added.
        sums = ("ewise_fma", "log_add_exp")
        terms = sum(np.abs(operand) for operand in operands[1:]) if name in sums else 0.0
        relative_to = np.abs(operands[0]) if name in ("gelu", "gelu_tanh", "silu") else np.abs(exact) + terms
        near = np.abs(got - exact) <= 4 * 2.0**-23 * relative_to + 2.0**-147
    # The instruction that narrows to bfloat16 takes subnormal numbers for 0.
    flushed = (name == "round_bfloat16") & (np.abs(exact) < 2.0**-126)
    wrong = ~(same | near | flushed)
    places = [operand[wrong][:4] for operand in operands]
    assert not wrong.any(), f"{name}{places}: got {got[wrong][:4]}, expected {exact[wrong][:4]}"


def test_operators_with_numbers_name_them_as_operands() -> None:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    op = relax.op
    assert operation(op.nn.leakyrelu(x, 0.25)) == ("leakyrelu", (x, 0.25))
    assert operation(op.clip(x, -1, 6)) == ("clip", (x, -1.0, 6.0))
    assert operation(op.power(x, relax.const(-0.5, "float32"))) == ("rsqrt", (x,))
    assert operation(op.nn.softplus(x)) == ("softplus", (x,))
    assert operation(op.nn.softplus(x, beta=2.0)) == ("softplus_scaled", (x, 2.0, 20.0))
    assert operation(op.power(x, x)) == ("power", (x, x))
    assert operation(op.floor_mod(x, x)) == ("floor_mod", (x, x))
