"""Machine code made in parts, by one thread or several, is the same code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir.instrument import pass_instrument

from autocast.errors import CompileError
from autocast.kernels import detect_target, finish, load, plan
from autocast.kernels import generate as generation
from autocast.kernels.generate import parts_of
from tests.kernels.modules import module, random, scheduled


def _planned(*, existing: bool = False) -> tvm.IRModule:
    """Four kernels one after another; PrimFuncs that came with the module where it is `existing`."""

    def body(x: relax.Expr) -> relax.Expr:
        for _ in range(2):
            x = relax.op.nn.softmax(relax.op.matmul(x, x))
        return relax.op.sum(x, axis=[0])

    mod = module(body, ((24, 24), "float32"))
    return plan(relax.transform.LegalizeOps()(mod) if existing else mod, detect_target()).planned


def _assembly(library: tvm.runtime.Module) -> Iterator[str]:
    if library.kind == "llvm":
        yield library.inspect_source("s")
    for imported in library.imports:
        yield from _assembly(imported)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "KERNELS_IN_PART", 1)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_function_is_in_one_part_and_those_of_relax_in_the_first(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "KERNELS_IN_PART", size)
    planned = _planned()
    parts = parts_of(planned)
    names = [var.name_hint for part in parts for var in part.functions]
    assert sorted(names) == sorted(var.name_hint for var in planned.functions)
    assert max(len(scheduled(part)) for part in parts) <= size
    for part in parts[1:]:
        assert part.functions and all(isinstance(function, tirx.PrimFunc) for function in part.functions.values())


@pytest.mark.usefixtures("small_parts")
def test_functions_that_came_with_a_module_stay_together() -> None:
    planned = _planned(existing=True)
    assert len(scheduled(planned)) > 1
    assert len(parts_of(planned)) == 1


@pytest.mark.usefixtures("small_parts")
def test_code_and_results_do_not_depend_on_threads() -> None:
    planned, argument = _planned(), tvm.runtime.tensor(random((24, 24), "float32"))
    code, results = [], []
    for threads in (1, 2, 5):
        executable = finish(planned, detect_target(), threads)
        load(executable, threads)
        code.append(list(_assembly(executable.mod)))
        results.append(relax.VirtualMachine(executable, tvm.cpu())["main"](argument).numpy())
    assert len(code[0]) == len(scheduled(planned)) > 2
    assert code[0] == code[1] == code[2]
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pass_instrument
class _Failing:
    """Fails in the part that has a kernel of this name."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name == "tirx.MakePackedAPI" and self.kernel in [var.name_hint for var in mod.functions]:
            raise ValueError(f"no code for {self.kernel}")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_any_part_is_raised(threads: int) -> None:
    planned = _planned()
    for name in scheduled(planned):
        with tvm.transform.PassContext(instruments=[_Failing(name)]), pytest.raises(CompileError, match=name):
            finish(planned, detect_target(), threads)
