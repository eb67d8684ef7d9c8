"""Random numbers in kernels: the same on every target, in every dtype and shape, however many threads there are."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels.pipeline import LOWERING, lower
from autocast.operators.own import seeded_dropout, seeded_normal, seeded_uniform, stochastic_round
from tests.kernels.compiling import machine_of
from tests.kernels.modules import module
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of
from tests.operators.own.dropout_reference import kept, normal, uniform
from tests.operators.own.rounding_reference import rounded

every_cpu = pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float64": np.float64}
STATE = np.array([-7, 123], "int32")


def _module(shape: Sequence, dtype: str, rate: float = 0.3) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state], attrs={"num_input": 2}):
        with builder.dataflow():
            result = builder.emit_output(seeded_dropout(x, state, rate=rate, stream=5))
        builder.emit_func_output(result)
    return builder.get()


def _run(mod: tvm.IRModule, cpu: str, values: np.ndarray) -> np.ndarray:
    machine = machine_of(mod, target_of(cpu))
    return machine["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(STATE)).numpy()


@every_cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (17, 33), (3, 1, 129)])
def test_every_target_keeps_the_elements_of_the_definition(cpu: str, dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(0).standard_normal(shape) + 5).astype(DTYPES[dtype])
    got = _run(_module(shape, dtype), cpu, values).astype(np.float64)
    mask = kept(shape, 0.3, -7, 123, 5)
    np.testing.assert_array_equal(got != 0, mask)
    exact = values.astype(np.float64) / 0.7
    step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 2.0**-22)
    np.testing.assert_allclose(got, np.where(mask, exact, 0), rtol=step)


@every_cpu
@pytest.mark.parametrize("shape", [(1,), (17, 33), (64, 5003)])
def test_every_target_rounds_as_the_definition_does(cpu: str, shape: tuple[int, ...]) -> None:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state], attrs={"num_input": 2}):
        with builder.dataflow():
            result = builder.emit_output(stochastic_round(x, state, stream=5))
        builder.emit_func_output(result)
    values = np.random.default_rng(0).standard_normal(shape, "float32")
    values.flat[::7] = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], "float32"), values.flat[::7].shape)
    got = _run(builder.get(), cpu, values).astype("float32")
    np.testing.assert_array_equal(got, rounded(values, -7, 123, 5).astype("float32"))


@every_cpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (17, 33), (64, 5003)])
def test_every_target_draws_the_numbers_of_the_definition(cpu: str, dtype: str, shape: tuple[int, ...]) -> None:
    draws = (seeded_uniform, seeded_normal)
    mod = module(lambda *args: relax.Tuple([draw(*args, stream=5) for draw in draws]), (shape, dtype), ((2,), "int32"))
    machine = machine_of(mod, target_of(cpu))
    got = machine["main"](tvm.runtime.tensor(np.zeros(shape, dtype)), tvm.runtime.tensor(STATE))
    np.testing.assert_array_equal(got[0].numpy(), uniform(shape, -7, 123, 5))
    turned = 6 * 2.0**-22  # the angle is rounded, and the length is at most 6
    np.testing.assert_allclose(got[1].numpy(), normal(shape, -7, 123, 5), rtol=1e-6, atol=turned)


def test_noise_is_part_of_the_kernel_that_adds_it() -> None:
    def noisy(x: relax.Expr, state: relax.Expr) -> relax.Expr:
        return x + seeded_normal(relax.op.zeros((16, 64), "float32"), state, stream=0) * relax.const(0.1)

    mod = module(noisy, ((16, 64), "float32"), ((2,), "int32"))
    lowered = lower(mod, target_of("x86-64-v3"))
    kernels = [gv.name_hint for gv, f in lowered.functions.items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernels) == 1, kernels


def test_rounding_is_part_of_the_kernel_around_it() -> None:
    x = relax.Var("x", relax.TensorType((16, 64), "float32"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state], attrs={"num_input": 2}):
        with builder.dataflow():
            y = builder.emit(stochastic_round(relax.op.nn.gelu(x), state, stream=0))
            result = builder.emit_output(relax.op.add(y, y))
        builder.emit_func_output(result)
    lowered = lower(builder.get(), target_of("x86-64-v3"))
    kernels = [gv.name_hint for gv, f in lowered.functions.items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernels) == 1, kernels


def test_a_kernel_of_many_threads_keeps_the_same_elements() -> None:
    shape = (64, 5003)  # more than one chunk a line, and enough work to share
    got = _run(_module(shape, "float32"), "x86-64-v3", np.ones(shape, "float32"))
    np.testing.assert_array_equal(got != 0, kept(shape, 0.3, -7, 123, 5))


def test_a_dimension_may_be_known_at_run_time() -> None:
    batch = tvm.tirx.Var("batch", "int64")
    got = _run(_module((batch, 37), "float32"), "x86-64-v3", np.ones((11, 37), "float32"))
    np.testing.assert_array_equal(got != 0, kept((11, 37), 0.3, -7, 123, 5))


def test_infinite_elements_are_dropped_to_zero() -> None:
    got = _run(_module((100,), "float32"), "x86-64-v3", np.full(100, np.inf, "float32"))
    np.testing.assert_array_equal(got, np.where(kept((100,), 0.3, -7, 123, 5), np.inf, 0))


def test_dropout_is_part_of_the_kernel_around_it() -> None:
    x = relax.Var("x", relax.TensorType((16, 64), "float32"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state], attrs={"num_input": 2}):
        with builder.dataflow():
            y = builder.emit(seeded_dropout(relax.op.nn.gelu(x), state, rate=0.1, stream=0))
            result = builder.emit_output(relax.op.add(x, y))
        builder.emit_func_output(result)
    lowered = lower(builder.get(), target_of("x86-64-v3"))
    kernels = [gv.name_hint for gv, f in lowered.functions.items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernels) == 1, kernels


def test_marks_of_recomputation_go_before_operators_are_legalized() -> None:
    names = [phase.name for phase in LOWERING]
    assert names.index("canonicalize") < names.index("remove_checkpoints") < names.index("legalize")
