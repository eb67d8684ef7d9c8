"""AutoCast modules, run with TVM's own kernels: near float32, and exact where the author wrote a rounding."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import run


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@I.ir_module
class Network:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32"), b: R.Tensor((16,), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            s = R.add(a, b)
            r = R.nn.relu(s)
            both = R.concat((r, x), axis=0)
            parts = R.split(both, 2, axis=0)
            first = parts[0]
            turned = R.permute_dims(w)
            c = R.matmul(first, turned)
            p = R.nn.softmax(c)
            n = R.nn.layer_norm(c, b, b, axes=[-1])
            R.output(p, n)
        return (p, n)


@pytest.mark.parametrize("objective", ["bytes", "casts"])
@pytest.mark.parametrize("solver", ["optimal", "greedy"])
def test_float16_results_are_near_those_of_float32(objective, solver):
    args = normal(8, 16), normal(16, 16, seed=1) / 4, normal(16, seed=2)
    after = amp.autocast(Network, dtype="float16", objective=objective, solver=solver)
    for got, expected in zip(run(after, *args), run(Network, *args), strict=True):
        assert got.dtype == np.float32
        assert np.linalg.norm(got - expected) < 5e-3 * np.linalg.norm(expected)


def test_a_rounding_written_by_hand_is_exact():
    @I.ir_module
    class Rounds:
        @R.function
        def main(x: R.Tensor((64,), "float32")):
            with R.dataflow():
                low = R.astype(x, "float16")
                back = R.astype(low, "float32")
                lost = R.subtract(x, back)
                R.output(back, lost)
            return (back, lost)

    x = normal(64)
    back, lost = run(amp.autocast(Rounds, dtype="float16"), x)
    rounded = x.astype("float16").astype("float32")
    np.testing.assert_array_equal(back, rounded)
    np.testing.assert_array_equal(lost, x - rounded)


def test_a_rounding_written_by_hand_is_exact_after_autocasting_twice():
    @I.ir_module
    class Rounds:
        @R.function
        def main(x: R.Tensor((8, 8), "float16")):
            with R.dataflow():
                y = R.matmul(x, x, out_dtype="float32")
                low = R.astype(y, "float16")
                back = R.astype(low, "float32")
                z = R.abs(back)
                R.output(z)
            return z

    x = normal(8, 8).astype("float16")
    once = amp.autocast(Rounds, dtype="float16")
    (z,) = run(amp.autocast(once, dtype="float16"), x)
    np.testing.assert_array_equal(z, z.astype("float16").astype("float32"))
    np.testing.assert_allclose(z, np.abs(x.astype("float32") @ x.astype("float32")), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_of_a_conditional_compute_what_they_did(condition):
    @I.ir_module
    class Branches:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
            y = R.matmul(x, x)
            if c:
                a = R.matmul(y, x)
                r = a
            else:
                b = R.exp(y)
                r = b
            z = R.matmul(r, x)
            return z

    args = np.array(condition), normal(4, 4) / 2
    (got,) = run(amp.autocast(Branches, dtype="float16"), *args)
    (expected,) = run(Branches, *args)
    np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2)


def test_a_literal_that_float16_cannot_hold_keeps_its_value():
    @I.ir_module
    class Masked:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                y = R.matmul(x, x)
                masked = R.maximum(y, R.const(-1e30, "float32"))
                scaled = R.multiply(masked, R.const(1e-20, "float32"))
                back = R.multiply(scaled, R.const(1e20, "float32"))
                z = R.matmul(back, x)
                R.output(z)
            return z

    x = normal(4, 4)
    (got,) = run(amp.autocast(Masked, dtype="float16"), x)
    (expected,) = run(Masked, x)
    np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2)
