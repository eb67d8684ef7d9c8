"""Random programs, compiled in every precision, give what float64 gives, within the roundings that they make."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import HealthCheck, assume, given, settings

from autocast import amp as mixed
from autocast import vm
from autocast.model import Model
from autocast.training import differentiate
from tests.kernels.modules import NUMPY
from tests.kernels.programs import Program, programs

_LARGEST = 1e4
some = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _array(value: torch.Tensor, dtype: str) -> np.ndarray:
    return value.numpy().astype(NUMPY.get(dtype, dtype))


def _run(program: Program, mod: tvm.IRModule, amp: str | None) -> list[np.ndarray]:
    """What "main" of `mod` answers for the program's arguments; temporary memory and outputs hold NaN before."""
    arrays = [_array(value, dtype) for value, dtype in program.inputs]
    names = [f"p{i}" for i in range(len(arrays) - program.num_input)]
    params = dict(zip(names, map(tvm.runtime.tensor, arrays[program.num_input :]), strict=True))
    model = Model(mod, params)
    executable = vm.compile(model if amp is None else mixed.autocast(model, dtype=amp))
    inputs = arrays[: program.num_input]
    executable(*[tvm.runtime.tensor(np.full_like(x, np.nan)) for x in inputs])
    result = executable(*map(tvm.runtime.tensor, inputs))
    return [part.numpy() for part in (result if isinstance(result, tuple | list) else [result])]


def _compare(program: Program, got: list[np.ndarray], exact: list[torch.Tensor], allowed: list[float]) -> None:
    for number, (array, value, bound) in enumerate(zip(got, exact, allowed, strict=True)):
        assert array.shape == tuple(value.shape)
        off = np.abs(array.astype("float64") - value.numpy())
        assert (off <= bound).all(), f"{_text(program)}: result {number} is off by {off.max()}, allowed {bound}"


def _is_tame(values: list[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(x).all()) and float(x.abs().max()) < _LARGEST for x in values if x.numel())


def check_results(program: Program, amp: str | None) -> None:
    """Compare the compiled program with float64."""
    exact, allowed = program.bounds(amp)
    assume(_is_tame(exact))
    _compare(program, _run(program, program.module(), amp), exact, allowed)


def check_gradients(program: Program, amp: str | None) -> None:
    """Compare the gradients of a number made of the first result, by every argument, with torch's in float64."""
    program = program.loss()
    exact, allowed = program.bounds(amp, program.gradients)
    assume(_is_tame(exact))
    main = program.module()["main"]
    mod = tvm.IRModule({"main": differentiate(main, list(main.params))})
    _, *gradients = _run(program, mod, amp)
    _compare(program, gradients, exact, allowed)


def _text(program: Program) -> str:
    return " ".join(f"{step.name}{step.operands}" for step in program.steps)


@pytest.mark.parametrize("amp", [None, "bfloat16", "float16"])
def test_results_are_those_of_float64(amp: str | None) -> None:
    @given(program=programs(amp or "bfloat16"))
    @some
    def check(program: Program) -> None:
        check_results(program, amp)

    check()


@pytest.mark.parametrize("amp", [None, "bfloat16"])
def test_gradients_are_those_of_float64(amp: str | None) -> None:
    @given(program=programs(amp or "bfloat16", most=6, differentiable=True))
    @some
    def check(program: Program) -> None:
        check_gradients(program, amp)

    check()
