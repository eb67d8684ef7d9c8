"""Elementwise kernels against float64: broadcasting, odd sizes, several outputs, every dtype and instruction set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import tvm

from autocast.kernels.specs.program import Program, ProgramBuilder
from autocast.kernels.targets.cpu.elementwise.kernel import elementwise_kernel
from autocast.kernels.targets.cpu.vector import streaming
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

every_cpu = pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
NUMPY = {**DTYPES, "bool": np.bool_}
Shape = tuple[int | str, ...]


class Case(NamedTuple):
    """A space, the (shape, dtype) of what is read, the program's steps, and the same in numpy.

    `steps` gets a builder and the loads and answers the steps to store; `exact` gets float64 arrays.
    """

    space: Shape
    arguments: Sequence[tuple[Shape, str]]
    steps: Callable[..., Sequence[int]]
    exact: Callable[..., Sequence[np.ndarray]]
    outputs: Sequence[str]

    def program(self) -> Program:
        builder = ProgramBuilder(self.space)
        loads = [builder.load(builder.argument(shape, dtype), shape) for shape, dtype in self.arguments]
        steps = self.steps(builder, *loads)
        return builder.finish([(step, self.space, dtype) for step, dtype in zip(steps, self.outputs, strict=True)])


def _add_relu(b: ProgramBuilder, x: int, y: int) -> list[int]:
    return [b.step("relu", b.step("add", x, y))]


def _chain(b: ProgramBuilder, x: int, scale: int, offset: int, y: int) -> list[int]:
    return [b.step("tanh", b.step("add", b.step("multiply", x, scale), b.step("add", offset, y)))]


def _masked(b: ProgramBuilder, mask: int, x: int) -> list[int]:
    kept = b.step("where", mask, x, b.constant(-1.0))
    return [kept, b.step("greater", kept, b.constant(0.0)), b.step("square", x)]


CASES = {
    "flat": Case(
        (3, 4099), [((3, 4099), "bfloat16")] * 2, _add_relu, lambda x, y: [np.maximum(x + y, 0)], ["bfloat16"]
    ),
    "wide": Case(
        (70000,),
        [((70000,), "float32"), ((1,), "float16")],
        _add_relu,
        lambda x, y: [np.maximum(x + y, 0)],
        ["float32"],
    ),
    "one element": Case(
        (1, 1), [((1, 1), "bfloat16"), ((), "float16")], _add_relu, lambda x, y: [np.maximum(x + y, 0)], ["float16"]
    ),
    "scalar": Case(
        (), [((), "bfloat16"), ((), "float32")], _add_relu, lambda x, y: [np.maximum(x + y, 0)], ["float32"]
    ),
    "broadcasts": Case(
        (2, 5, 3, 37),
        [((2, 5, 3, 37), "bfloat16"), ((5, 1, 1), "float32"), ((37,), "float16"), ((2, 1, 3, 1), "bfloat16")],
        _chain,
        lambda x, scale, offset, y: [np.tanh(x * scale + (offset + y))],
        ["bfloat16"],
    ),
    "run-time sizes": Case(
        ("n", "m"),
        [(("n", "m"), "bfloat16"), (("n", 1), "float32"), (("m",), "float16"), ((1, 1), "bfloat16")],
        _chain,
        lambda x, scale, offset, y: [np.tanh(x * scale + (offset + y))],
        ["float32"],
    ),
    "run-time sizes of four axes": Case(
        ("k", "l", "n", "s"),
        [
            (("k", 1, "n", 1), "float32"),
            (("k", 1, 1, "s"), "float16"),
            (("l", "n", 1), "float32"),
            (("n", "s"), "bool"),
        ],
        _chain,
        lambda x, scale, offset, y: [np.tanh(x * scale + (offset + y))],
        ["float32"],
    ),
    "several outputs": Case(
        (13, 43),
        [((13, 43), "bool"), ((13, 43), "float32")],
        _masked,
        lambda mask, x: [np.where(mask, x, -1.0), np.where(mask, x, -1.0) > 0, x * x],
        ["bfloat16", "bool", "float16"],
    ),
    "a mask for each row": Case(
        (13, 43),
        [((13, 1), "bool"), ((43,), "float32")],
        _masked,
        lambda mask, x: [y + np.zeros((13, 43)) for y in (np.where(mask, x, -1.0), np.where(mask, x, -1.0) > 0, x * x)],
        ["float32", "bool", "float32"],
    ),
}
SIZES = {"k": 3, "l": 5, "n": 11, "s": 19, "m": 4133}


@cache
def compiled(cpu: str, cores: int) -> tvm.runtime.Module:
    """All cases in one module."""
    target = target_of(cpu, cores)
    functions = {
        name: elementwise_kernel(case.program(), target, name.replace(" ", "_")) for name, case in CASES.items()
    }
    functions = {name.replace(" ", "_"): function for name, function in functions.items()}
    return compile_kernels(functions, target)


def _known(shape: Shape) -> tuple[int, ...]:
    return tuple(SIZES[dim] if isinstance(dim, str) else dim for dim in shape)


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(numbers > 0 if dtype == "bool" else numbers).astype(NUMPY[dtype])


@every_cpu
@pytest.mark.parametrize("name", CASES)
def test_kernels_match_float64(name: str, cpu: str) -> None:
    check(name, compiled(cpu, 2))


@every_cpu
def test_results_that_are_stored_past_the_caches_are_the_same(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FAR_BYTES", 0)
    module = compiled.__wrapped__(cpu, 2)
    assert ("movnt" in module.inspect_source("asm")) == (cpu != "x86-64")
    for name in CASES:
        check(name, module)


def check(name: str, module: tvm.runtime.Module) -> None:
    """Assert that a case's kernel, one of `module`, computes what numpy does, and writes nothing else."""
    case = CASES[name]
    arguments = [_random(_known(shape), dtype, seed) for seed, (shape, dtype) in enumerate(case.arguments)]
    exact = case.exact(*[x if x.dtype == bool else x.astype(np.float64) for x in arguments])
    space = _known(case.space)
    # What follows each output in memory must stay as it is.
    outputs = [np.full(math.prod(space) + 64, 77).astype(NUMPY[dtype]) for dtype in case.outputs]
    tensors = [tvm.runtime.tensor(output) for output in outputs]
    views = [_view(tensor, space) for tensor in tensors]
    module[name.replace(" ", "_")](*[tvm.runtime.tensor(x) for x in arguments], *views)
    for tensor, dtype, want in zip(tensors, case.outputs, exact, strict=True):
        got, rest = tensor.numpy()[: math.prod(space)].reshape(space), tensor.numpy()[math.prod(space) :]
        assert (rest == np.full(64, 77).astype(NUMPY[dtype])).all()
        if dtype == "bool":
            np.testing.assert_array_equal(got, want)
        else:
            # Roundings of sums, products and tanh in float32, of numbers below 16, and of the result.
            allowed = 16 * 2.0**-22 + ROUNDING[dtype] * np.abs(want)
            assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


def _view(tensor: tvm.runtime.Tensor, shape: tuple[int, ...]) -> tvm.runtime.Tensor:
    return tensor._create_view(shape)


@pytest.mark.parametrize("function", ["relu", "maximum", "clip", "where", "tanh"])
def test_nan_goes_through(function: str) -> None:
    builder = ProgramBuilder((40,))
    x = builder.load(builder.argument((40,), "float32"), (40,))
    bound = builder.constant(0.5)
    operands = {
        "relu": (x,),
        "tanh": (x,),
        "maximum": (x, bound),
        "clip": (x, bound, bound),
        "where": (bound, x, bound),
    }
    program = builder.finish([(builder.step(function, *operands[function]), (40,), "bfloat16")])
    target = target_of(CPUS[0]) if runs_here(CPUS[0]) else target_of(CPUS[-1])
    kernel = compile_kernels({"main": elementwise_kernel(program, target, "main")}, target)["main"]
    output = tvm.runtime.tensor(np.zeros(40, NUMPY["bfloat16"]))
    kernel(tvm.runtime.tensor(np.full(40, np.nan, np.float32)), output)
    assert np.isnan(output.numpy().astype(np.float32)).all()


@every_cpu
@pytest.mark.parametrize("far", [False, True], ids=["into the caches", "past them"])
@pytest.mark.parametrize("size", [1024, 1003])
def test_subnormal_results_of_functions_that_make_many_are_right(
    size: int, far: bool, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FAR_BYTES", 0 if far else 1 << 40)
    builder = ProgramBuilder((size,))
    x = builder.load(builder.argument((size,), "float32"), (size,))
    program = builder.finish([(builder.step("multiply", x, builder.constant(2.0**-20)), (size,), "bfloat16")])
    kernel = compile_kernels({"main": elementwise_kernel(program, target_of(cpu), "main")}, target_of(cpu))
    numbers = np.linspace(-(2.0**-105), 2.0**-105, size, dtype="float32")
    output = tvm.runtime.tensor(np.full(size, np.nan, NUMPY["bfloat16"]))
    kernel["main"](tvm.runtime.tensor(numbers), output)
    np.testing.assert_array_equal(output.numpy(), (numbers * np.float32(2.0**-20)).astype(NUMPY["bfloat16"]))


def test_indices_of_run_time_sizes_are_divided_without_a_case_for_each_sign() -> None:
    target = target_of("x86-64")
    kernel = elementwise_kernel(CASES["run-time sizes of four axes"].program(), target, "kernel")
    lowered = tvm.tirx.transform.LowerIntrin()(tvm.IRModule({"kernel": kernel.with_attr("target", target)}))
    assert "Select" not in lowered.script()
