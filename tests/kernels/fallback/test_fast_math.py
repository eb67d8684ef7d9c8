"""Elementary functions against float64, over the whole range of float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import tvm
from tvm import te

from autocast.kernels import detect_target
from autocast.kernels.fallback import fast_math

#: Function -> (float64 reference, whether small results must be right to their last digits and not only near 1).
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], bool]] = {
    "exp": (np.exp, True),
    "log": (np.log, True),
    "tanh": (np.tanh, True),
    "sigmoid": (scipy.special.expit, True),
    "erf": (scipy.special.erf, False),
    "silu": (lambda x: x * scipy.special.expit(x), False),
    "gelu": (lambda x: x * scipy.special.ndtr(x), False),
    "gelu_tanh": (lambda x: x * scipy.special.expit(2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)), False),
    "softplus": (lambda x: np.logaddexp(0, x), False),
}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], "float32")


def _evaluate(name: str, x: np.ndarray) -> np.ndarray:
    function = getattr(fast_math, name)
    argument = te.placeholder(x.shape, "float32", name="x")
    result = te.compute(x.shape, lambda i: function(argument(i)))
    kernel = tvm.compile(te.create_prim_func([argument, result]), target=detect_target())
    output = tvm.runtime.tensor(np.full_like(x, np.nan))
    kernel(tvm.runtime.tensor(x), output)
    return output.numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_below_one_in_a_million(name: str) -> None:
    reference, relative = FUNCTIONS[name]
    magnitudes = np.exp(np.linspace(-80, 88, 1 << 15))
    x = np.concatenate([np.linspace(-104, 104, 1 << 17), magnitudes, -magnitudes, SPECIAL]).astype("float32")
    with np.errstate(all="ignore"):
        expected = reference(x.astype("float64"))
        got = _evaluate(name, x).astype("float64")
        bound = np.abs(expected) if relative else np.maximum(np.abs(expected), 1.0)
        normal = np.isfinite(expected) & (np.abs(expected) < 3.4e38) & (np.abs(expected) > 1.2e-38)
    assert np.all(np.abs(got[normal] - expected[normal]) <= 1.1e-6 * bound[normal])


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "softplus"])
def test_infinities_zeros_and_nan_give_the_limits(name: str) -> None:
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name][0](SPECIAL.astype("float64")).astype("float32")
    np.testing.assert_allclose(_evaluate(name, SPECIAL), expected, rtol=1e-6)
