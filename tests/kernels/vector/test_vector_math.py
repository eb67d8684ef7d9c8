"""The polynomials against float64, densely over all float32 and at the special values, for every vector width."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from scipy import special
from tvm.script.ir_builder import tirx as T

from autocast.kernels.target import instruction_set
from autocast.kernels.vector import vector_math
from autocast.kernels.vector.unit import i64, importing, kernel_function
from tests.kernels.products.cases import ACTIVATIONS, target_of
from tests.kernels.products.test_kernel import every_cpu, here

#: The function in float64, and its largest error in units of the last place of the float32 result.
EXACT = {
    "exp": (np.exp, 1.2),
    "erf": (special.erf, 1.2),
    "tanh": (np.tanh, 2.8),
    "sinh": (np.sinh, 3.2),
    "cosh": (np.cosh, 3.2),
    "sigmoid": (special.expit, 2.8),
    "log": (np.log, 0.9),
    "log1p": (np.log1p, 1.5),
    "softplus": (lambda x: np.logaddexp(0, x), 1.9),
    "sin": (np.sin, 1.6),
    "cos": (np.cos, 1.6),
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
    module = tvm.compile(tvm.IRModule({"main": finished()}), target=target_of(cpu))
    y = tvm.runtime.tensor(np.zeros_like(x))
    module["main"](tvm.runtime.tensor(x), y)
    return y.numpy()


def all_magnitudes(count: int = 1 << 20) -> np.ndarray:
    """Finite float32 numbers of both signs, evenly spread over bit patterns, hence over all exponents."""
    bits = np.linspace(0, 0x7F7FFFFF, count // 2, dtype=np.uint32)
    half = bits.view(np.float32)
    return np.concatenate([half, -half])


def last_place(exact: np.ndarray) -> np.ndarray:
    """The distance of neighbouring float32 numbers at each number."""
    return np.spacing(np.minimum(np.abs(exact), np.finfo(np.float32).max).astype(np.float32)).astype(np.float64)


@every_cpu
@pytest.mark.parametrize("name", list(EXACT))
def test_error_stays_within_the_stated_units_in_the_last_place(name: str, cpu: str) -> None:
    exact_function, bound = EXACT[name]
    x = np.concatenate([all_magnitudes(), np.linspace(-110, 110, 1 << 19, dtype=np.float32)])
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


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("name", [*EXACT, "relu", "gelu", "gelu_tanh", "silu"])
def test_special_values_give_the_limits(name: str, lanes: int) -> None:
    x = np.zeros(16, np.float32)
    x[:5] = np.nan, np.inf, 0.0, -0.0, -np.inf
    got = apply(name, x, lanes, here)
    limits = {"exp": 0.0, "erf": -1.0, "tanh": -1.0, "sigmoid": 0.0, "log": np.nan, "log1p": np.nan}
    at_zero = {"sigmoid": 0.5, "log": -np.inf, "softplus": np.float32(np.log(2))}.get(name, 0.0)
    at_zero = 1.0 if name in ("exp", "cos", "cosh") else at_zero
    at_infinity = {"erf": 1.0, "tanh": 1.0, "sigmoid": 1.0, "sin": np.nan, "cos": np.nan}.get(name, np.inf)
    expected = [np.nan, at_infinity, at_zero, at_zero]
    np.testing.assert_array_equal(got[:4], np.float32(expected))
    if name in limits:
        np.testing.assert_array_equal(got[4], np.float32(limits[name]))


@pytest.mark.parametrize("name", ["tanh", "sinh", "erf", "log1p", "sin"])
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    x = np.zeros(16, np.float32)
    x[:2] = -0.0, 0.0
    got = apply(name, x, 16, here)
    assert np.signbit(got[0]) and not np.signbit(got[1])


@every_cpu
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_within_float32_rounding_of_their_argument(name: str, cpu: str) -> None:
    x = np.linspace(-20, 20, 1 << 18, dtype=np.float32)
    got = apply(name, x, instruction_set(target_of(cpu)).lanes, cpu)
    exact = ACTIVATIONS[name](x.astype(np.float64))
    assert (np.abs(got - exact) <= 4 * 2.0**-24 * np.maximum(np.abs(x), np.abs(exact))).all()
