"""Models with updates: what an executable keeps between calls, and how it is read and set."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp, vm
from autocast.errors import InputError
from autocast.model import Model

RATE = np.array(0.1, "float32")


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, "float32") / 8


def descent() -> Model:
    """`z = x @ p @ w`, and `p -= rate * z` by a private function."""

    @I.ir_module
    class Descent:
        @R.function(private=True)
        def sgd(p: R.Tensor((64, 64), "float32"), g: R.Tensor((64, 64), "float32"), rate: R.Tensor((), "float32")):
            with R.dataflow():
                q = R.subtract(p, R.multiply(g, rate))
                R.output(q)
            return q

        @R.function
        def main(
            x: R.Tensor((64, 64), "float32"),
            rate: R.Tensor((), "float32"),
            w: R.Tensor((64, 64), "float32"),
            p: R.Tensor((64, 64), "float32"),
        ):
            R.func_attr({"num_input": 2, "updates": [1]})
            cls = Descent
            with R.dataflow():
                z = R.matmul(R.matmul(x, p), w)
                q = cls.sgd(p, z, rate)
                R.output(z, q)
            return (z, q)

    return Model(Descent, {"w": tvm.runtime.tensor(array(64, 64)), "p": tvm.runtime.tensor(array(64, 64, seed=1))})


def stepped(model: Model, x: np.ndarray, steps: int) -> np.ndarray:
    """`p` after `steps` steps of `descent`."""
    w, p = (value.numpy().astype("float64") for value in model.params.values())
    for _ in range(steps):
        p = p - float(RATE) * (x @ p @ w)
    return p


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-6), ("bfloat16", 1e-3), ("float16", 1e-3)])
def test_each_call_starts_from_what_the_last_one_left(dtype, tolerance):
    model, x = descent(), array(64, 64, seed=2)
    executable = vm.compile(model if dtype is None else amp.autocast(model, dtype=dtype))
    for steps in range(1, 4):
        z = executable(x, RATE)
        assert z.shape == (64, 64)
        np.testing.assert_allclose(executable.state["p"].numpy(), stepped(model, x, steps), atol=tolerance)


def test_a_model_is_a_value_so_calling_it_changes_nothing():
    model, x = descent(), array(64, 64, seed=2)
    before = model.params["p"].numpy().copy()
    first, second = model(x, RATE), model(x, RATE)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(model.params["p"].numpy(), before)


def test_executables_of_one_model_have_states_of_their_own():
    model, x = descent(), array(64, 64, seed=2)
    one, other = vm.compile(model), vm.compile(model)
    one(x, RATE)
    np.testing.assert_array_equal(other.state["p"].numpy(), model.params["p"].numpy())


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_fork_goes_on_from_a_copy_of_the_state_with_the_same_parameters(dtype):
    model = descent() if dtype is None else amp.autocast(descent(), dtype=dtype)
    first, alone, x = vm.compile(model), vm.compile(model), array(64, 64, seed=1)
    first(x, RATE)
    second = first.fork()
    assert [one.data_ptr() for one in second.params] == [one.data_ptr() for one in first.params]
    first(array(64, 64, seed=2), RATE)
    alone(x, RATE)
    np.testing.assert_array_equal(second(x, RATE), alone(x, RATE))
    np.testing.assert_array_equal(second.state["p"].numpy(), alone.state["p"].numpy())
    assert not np.array_equal(first.state["p"].numpy(), second.state["p"].numpy())


def test_a_loaded_state_is_gone_on_from():
    model, x = descent(), array(64, 64, seed=2)
    straight, resumed = vm.compile(model), vm.compile(model)
    straight(x, RATE)
    saved = {name: value.numpy() for name, value in straight.state.items()}
    want = straight(x, RATE)
    resumed.load_state(saved)
    np.testing.assert_array_equal(resumed(x, RATE), want)
    np.testing.assert_array_equal(resumed.state["p"].numpy(), straight.state["p"].numpy())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"q": array(64, 64)}, "load_state: 'q' is not part of the state, which has 1 tensors"),
        ({"p": array(64, 32)}, "load_state: p is float32[64, 32], expected float32[64, 64]"),
        ({"p": array(64, 64).astype("float64")}, "load_state: p is float64[64, 64], expected float32[64, 64]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state, message):
    executable = vm.compile(descent())
    with pytest.raises(InputError, match=re.escape(message)):
        executable.load_state(state)


def test_the_results_are_cast_to_the_output_dtype_and_the_updates_are_not():
    executable = vm.compile(amp.autocast(descent(), out_dtype="bfloat16"))
    assert str(executable(array(64, 64), RATE).dtype) == "bfloat16"
    assert str(executable.state["p"].dtype) == "float32"


def test_a_profile_leaves_the_state_of_other_executables_alone():
    model, x = descent(), array(64, 64, seed=2)
    executable = vm.compile(model)
    vm.profile_vm_model(model, "cpu", [x, RATE], warmup=1, number=1, repeat=1)
    np.testing.assert_array_equal(executable.state["p"].numpy(), model.params["p"].numpy())
    assert vm.trace_memory(model, "cpu", [x, RATE]).params > 2 * 64 * 64 * 4 / 2**20 - 1e-6
