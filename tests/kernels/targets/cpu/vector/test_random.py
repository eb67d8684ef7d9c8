"""Random numbers in kernels: the same on every target, in every dtype and shape, however many threads there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

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


def _machine(body: Callable[..., relax.Expr], cpu: str, *arguments: tuple[Sequence, str]) -> relax.VirtualMachine:
    """Runs what `body` makes of arguments and a state."""
    return machine_of(module(body, *arguments, ((2,), "int32")), target_of(cpu))


def _run(machine: relax.VirtualMachine, *values: np.ndarray) -> list[np.ndarray]:
    results = machine["main"](*map(tvm.runtime.tensor, (*values, STATE)))
    return [result.numpy() for result in ([results] if hasattr(results, "numpy") else results)]


def _dropped(*arguments: relax.Expr) -> relax.Expr:
    *every, state = arguments
    return relax.Tuple([seeded_dropout(x, state, rate=0.3, stream=5) for x in every])


@every_cpu
def test_every_target_keeps_the_elements_of_the_definition(cpu: str) -> None:
    arguments = list(itertools.product([(1,), (17, 33), (3, 1, 129)], DTYPES))
    values = [(np.random.default_rng(0).standard_normal(shape) + 5).astype(DTYPES[d]) for shape, d in arguments]
    results = _run(_machine(_dropped, cpu, *arguments), *values)
    for (shape, dtype), x, got in zip(arguments, values, results, strict=True):
        mask = kept(shape, 0.3, -7, 123, 5)
        np.testing.assert_array_equal(got != 0, mask, err_msg=f"{dtype}{shape}")
        exact = x.astype(np.float64) / 0.7
        step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 2.0**-22)
        np.testing.assert_allclose(
            got.astype(np.float64), np.where(mask, exact, 0), rtol=step, err_msg=f"{dtype}{shape}"
        )


@every_cpu
def test_every_target_rounds_as_the_definition_does(cpu: str) -> None:
    def body(*arguments: relax.Expr) -> relax.Expr:
        *every, state = arguments
        return relax.Tuple([stochastic_round(x, state, stream=5) for x in every])

    shapes = [(1,), (17, 33), (64, 5003)]
    every = [np.random.default_rng(0).standard_normal(shape, "float32") for shape in shapes]
    for values in every:
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], "float32")
        values.flat[::7] = np.resize(special, values.flat[::7].shape)
    results = _run(_machine(body, cpu, *[(shape, "float32") for shape in shapes]), *every)
    for values, got in zip(every, results, strict=True):
        expected = rounded(values, -7, 123, 5).astype("float32")
        np.testing.assert_array_equal(got.astype("float32"), expected, err_msg=str(values.shape))


@every_cpu
def test_every_target_draws_the_numbers_of_the_definition(cpu: str) -> None:
    def body(*arguments: relax.Expr) -> relax.Expr:
        *every, state = arguments
        return relax.Tuple([draw(like, state, stream=5) for like in every for draw in (seeded_uniform, seeded_normal)])

    arguments = list(itertools.product([(), (17, 33), (64, 5003)], ("float32", "float64")))
    results = _run(_machine(body, cpu, *arguments), *[np.zeros(shape, dtype) for shape, dtype in arguments])
    turned = 6 * 2.0**-22  # the angle is rounded, and the length is at most 6
    for (shape, dtype), even, bell in zip(arguments, results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(even, uniform(shape, -7, 123, 5), err_msg=f"{dtype}{shape}")
        exact = normal(shape, -7, 123, 5)
        np.testing.assert_allclose(bell, exact, rtol=1e-6, atol=turned, err_msg=f"{dtype}{shape}")


def test_noise_is_part_of_the_kernel_that_adds_it() -> None:
    def noisy(x: relax.Expr, state: relax.Expr) -> relax.Expr:
        return x + seeded_normal(relax.op.zeros((16, 64), "float32"), state, stream=0) * relax.const(0.1)

    assert len(_kernels(noisy)) == 1


def _kernels(body: Callable[..., relax.Expr]) -> list[str]:
    lowered = lower(module(body, ((16, 64), "float32"), ((2,), "int32")), target_of("x86-64-v3"))
    return [var.name_hint for var, function in lowered.functions.items() if isinstance(function, tvm.tirx.PrimFunc)]


def test_rounding_is_part_of_the_kernel_around_it() -> None:
    def body(x: relax.Expr, state: relax.Expr) -> relax.Expr:
        y = stochastic_round(relax.op.nn.gelu(x), state, stream=0)
        return relax.op.add(y, y)

    assert len(_kernels(body)) == 1


def test_a_kernel_of_many_threads_keeps_the_same_elements() -> None:
    shape = (64, 5003)  # more than one chunk a line, and enough work to share
    (got,) = _run(_machine(_dropped, "x86-64-v3", (shape, "float32")), np.ones(shape, "float32"))
    np.testing.assert_array_equal(got != 0, kept(shape, 0.3, -7, 123, 5))


def test_a_dimension_may_be_known_at_run_time() -> None:
    (got,) = _run(_machine(_dropped, "x86-64-v3", (("batch", 37), "float32")), np.ones((11, 37), "float32"))
    np.testing.assert_array_equal(got != 0, kept((11, 37), 0.3, -7, 123, 5))


def test_infinite_elements_are_dropped_to_zero() -> None:
    (got,) = _run(_machine(_dropped, "x86-64-v3", ((100,), "float32")), np.full(100, np.inf, "float32"))
    np.testing.assert_array_equal(got, np.where(kept((100,), 0.3, -7, 123, 5), np.inf, 0))


def test_dropout_is_part_of_the_kernel_around_it() -> None:
    def body(x: relax.Expr, state: relax.Expr) -> relax.Expr:
        return relax.op.add(x, seeded_dropout(relax.op.nn.gelu(x), state, rate=0.1, stream=0))

    assert len(_kernels(body)) == 1


def test_marks_of_recomputation_go_before_operators_are_legalized() -> None:
    names = [phase.name for phase in LOWERING]
    assert names.index("canonicalize") < names.index("remove_checkpoints") < names.index("legalize")
