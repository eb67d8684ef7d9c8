"""The polynomials against float64, densely over all float32 and at the special values, for every vector width."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from scipy import special
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import i64
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.vector import vector_math
from autocast.kernels.targets.cpu.vector.unit import importing, kernel_function
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.epilogues import ACTIVATIONS
from tests.kernels.targets.cpu.products.cases import target_of
from tests.kernels.targets.cpu.products.test_kernel import every_cpu, here


def selu(x: np.ndarray) -> np.ndarray:
    """A multiple of ELU."""
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))


#: The function in float64, and its largest error in units of the last place of the float32 result.
EXACT = {
    "exp": (np.exp, 1.2),
    "expm1": (np.expm1, 1.7),
    "erf": (special.erf, 1.2),
    "tanh": (np.tanh, 2.8),
    "sinh": (np.sinh, 3.6),
    "cosh": (np.cosh, 3.2),
    "asinh": (np.arcsinh, 2.0),
    "acosh": (np.arccosh, 2.3),
    "atanh": (np.arctanh, 2.3),
    "sigmoid": (special.expit, 2.8),
    "log": (np.log, 0.9),
    "log1p": (np.log1p, 1.5),
    "softplus": (lambda x: np.logaddexp(0, x), 1.9),
    "sin": (np.sin, 1.6),
    "cos": (np.cos, 1.6),
    "tan": (np.tan, 3.2),
    "asin": (np.arcsin, 2.0),
    "acos": (np.arccos, 2.0),
    "atan": (np.arctan, 2.0),
    "selu": (selu, 2.3),
}


def apply(name: str, x: np.ndarray, lanes: int, cpu: str) -> np.ndarray:
    """The function `name` of every element of `x`, by vectors of `lanes`."""
    size = len(x)
    with kernel_function("main") as finished:
        source = T.arg("x", T.buffer((size,), "float32"))
        result = T.arg("y", T.buffer((size,), "float32"))
        with importing(vector_math.math_ir(lanes, (name,))), T.serial(0, i64(size // lanes)) as i:
            at = T.ramp(i * lanes, 1, lanes) if lanes > 1 else i
            T.buffer_store(result, vector_math.call(name, source[at]), [at])
    module = compile_kernels({"main": finished()}, target_of(cpu))
    y = tvm.runtime.tensor(np.zeros_like(x))
    module["main"](tvm.runtime.tensor(x), y)
    return y.numpy()


def all_magnitudes(count: int = 1 << 20) -> np.ndarray:
    """Finite float32 numbers of both signs, evenly spread over bit patterns, hence over all exponents."""
    bits = np.linspace(0, 0x7F7FFFFF, count // 2, dtype=np.uint32)
    half = bits.view(np.float32)
    return np.concatenate([half, -half])


def edges() -> np.ndarray:
    """For every exponent the smallest number, its neighbours and sqrt(2) of it; the smallest subnormals; near 1."""
    mantissas = np.array([0, 1, 2, 0x3504F3, 0x3504F4, 0x400000, 0x7FFFFE, 0x7FFFFF], np.uint32)
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas).ravel()
    half = np.concatenate([bits, np.arange(1, 4097, dtype=np.uint32)]).view(np.float32)
    one = np.linspace(0.5, 2, 1 << 16, dtype=np.float32)
    return np.concatenate([half, -half, one, -one])


def last_place(exact: np.ndarray) -> np.ndarray:
    """The distance of neighbouring float32 numbers at each number."""
    return np.spacing(np.minimum(np.abs(exact), np.finfo(np.float32).max).astype(np.float32)).astype(np.float64)


@every_cpu
@pytest.mark.parametrize("name", list(EXACT))
def test_error_stays_within_the_stated_units_in_the_last_place(name: str, cpu: str) -> None:
    exact_function, bound = EXACT[name]
    x = np.concatenate([all_magnitudes(), np.linspace(-110, 110, 1 << 19, dtype=np.float32), edges()])
    got = apply(name, x, instruction_set(target_of(cpu)).lanes, cpu)
    with np.errstate(all="ignore"):
        exact = exact_function(x.astype(np.float64))
        overflowed = np.abs(exact) > np.finfo(np.float32).max
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
        np.testing.assert_array_equal(got[overflowed], np.sign(exact[overflowed]) * np.inf)
        fine = np.isfinite(exact) & ~overflowed
        error = np.abs(got[fine] - exact[fine]) / last_place(exact[fine])
    worst = error.argmax()
    assert error[worst] <= bound, f"{name}({x[fine][worst]}) is off by {error[worst]} units"


#: The widths of vectors that this processor has; 16 lanes are written in AVX-512's instructions.
WIDTHS = [lanes for lanes in (1, 4, 8, 16) if lanes <= instruction_set(target_of(here)).lanes]


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("name", [*EXACT, "relu", "gelu", "gelu_tanh", "silu"])
def test_special_values_give_the_limits(name: str, lanes: int) -> None:
    x = np.zeros(16, np.float32)
    x[:5] = np.nan, np.inf, 0.0, -0.0, -np.inf
    got = apply(name, x, lanes, here)
    limits = {"exp": 0.0, "expm1": -1.0, "erf": -1.0, "tanh": -1.0, "sigmoid": 0.0, "softplus": 0.0, "relu": 0.0}
    limits |= {"atan": np.float32(-np.pi / 2)}
    limits |= {"sinh": -np.inf, "cosh": np.inf, "asinh": -np.inf, "selu": selu(np.float64(-np.inf))}
    at_zero = {"sigmoid": 0.5, "log": -np.inf, "softplus": np.float32(np.log(2)), "acosh": np.nan}.get(name, 0.0)
    at_zero = 1.0 if name in ("exp", "cos", "cosh") else at_zero
    at_infinity = {"erf": 1.0, "tanh": 1.0, "sigmoid": 1.0}.get(name, np.inf)
    at_zero = np.float32(np.pi / 2) if name == "acos" else at_zero
    at_infinity = np.float32(np.pi / 2) if name == "atan" else at_infinity
    at_infinity = np.nan if name in ("sin", "cos", "tan", "asin", "acos", "atanh") else at_infinity
    # What is missing has no number: logarithms, and infinity times zero in activations, as in torch.
    expected = [np.nan, at_infinity, at_zero, at_zero, limits.get(name, np.nan)]
    np.testing.assert_array_equal(got[:5], np.float32(expected))


@pytest.mark.parametrize(
    "name",
    [
        "tanh",
        "sinh",
        "asin",
        "atan",
        "asinh",
        "atanh",
        "erf",
        "log1p",
        "expm1",
        "sin",
        "tan",
        "selu",
        "gelu",
        "gelu_tanh",
        "silu",
    ],
)
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    x = np.zeros(16, np.float32)
    x[:2] = -0.0, 0.0
    got = apply(name, x, WIDTHS[-1], here)
    assert np.signbit(got[0]) and not np.signbit(got[1])


@every_cpu
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_within_float32_rounding_of_their_argument(name: str, cpu: str) -> None:
    x = np.linspace(-20, 20, 1 << 18, dtype=np.float32)
    got = apply(name, x, instruction_set(target_of(cpu)).lanes, cpu)
    exact = ACTIVATIONS[name](x.astype(np.float64))
    assert (np.abs(got - exact) <= 4 * 2.0**-24 * np.maximum(np.abs(x), np.abs(exact))).all()


@every_cpu
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_activations_vanish_far_below_zero(name: str, cpu: str) -> None:
    x = -np.logspace(np.log10(200), 38, 4096, dtype=np.float32)
    got = apply(name, x, instruction_set(target_of(cpu)).lanes, cpu)
    assert (got == 0).all() and np.signbit(got).all()


@every_cpu
def test_silu_keeps_its_digits_below_zero(cpu: str) -> None:
    x = np.linspace(-110, 0, 1 << 19, dtype=np.float32)
    got = apply("silu", x, instruction_set(target_of(cpu)).lanes, cpu)
    wide = x.astype(np.float64)
    exact = wide * special.expit(wide)
    assert (np.abs(got - exact) <= 4 * last_place(exact)).all()
