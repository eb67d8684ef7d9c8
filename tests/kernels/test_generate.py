"""Machine code made in parts, by one thread or several, is the same code, whether it is linked or made in memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.instrument import pass_instrument

from autocast.errors import CacheWarning, CompileError
from autocast.kernels import detect_target, finish, plan
from autocast.kernels.generate import Code, units_of
from autocast.runtime.library import load_library
from autocast.runtime.machine import VirtualMachine
from tests.kernels.modules import module, random, scheduled


def _planned(*, existing: bool = False) -> tvm.IRModule:
    """Four kernels one after another; PrimFuncs that came with the module where it is `existing`."""

    def body(x: relax.Expr) -> relax.Expr:
        for _ in range(2):
            x = relax.op.nn.softmax(relax.op.matmul(x, x))
        return relax.op.sum(x, axis=[0])

    mod = module(body, ((24, 24), "float32"))
    return plan(relax.transform.LegalizeOps()(mod) if existing else mod, detect_target()).planned


def _finish(planned: tvm.IRModule, threads: int = 1) -> Code:
    return finish(planned, detect_target(), threads).code


def _run(code: Code) -> np.ndarray:
    return VirtualMachine(code.library.module)["main"](tvm.runtime.tensor(random((24, 24), "float32"))).numpy()


def test_each_kernel_is_a_unit() -> None:
    planned = _planned()
    units = units_of(planned)
    assert sorted(var.name_hint for unit in units for var in unit.functions) == sorted(scheduled(planned))
    assert [len(unit.functions) for unit in units] == [1] * len(scheduled(planned))


def test_functions_that_came_with_a_module_are_one_unit() -> None:
    planned = _planned(existing=True)
    (unit,) = units_of(planned)
    assert len(unit.functions) == len(scheduled(planned)) > 1


def test_the_library_does_not_depend_on_threads() -> None:
    planned = _planned()
    codes = [_finish(planned, threads) for threads in (1, 2, 5)]
    assert codes[0].library.code
    assert codes[0].library.code == codes[1].library.code == codes[2].library.code
    np.testing.assert_array_equal(_run(codes[1]), _run(codes[0]))


def test_a_library_that_is_loaded_again_computes_the_same() -> None:
    code = _finish(_planned())
    assert code.library.code is not None
    np.testing.assert_array_equal(_run(Code(load_library(code.library.code), {}, {})), _run(code))


def test_without_a_linker_code_is_made_in_memory_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = _planned()
    linked = _run(_finish(planned))
    monkeypatch.setenv("PATH", "")
    with pytest.warns(CacheWarning, match="none of the linkers ld, .* nothing of it is cached. Install one"):
        code = _finish(planned, 2)
    assert code.library.code is None
    np.testing.assert_array_equal(_run(code), linked)


def test_a_module_without_kernels_is_linked_and_runs() -> None:
    code = _finish(plan(module(lambda x: x, ((24, 24), "float32")), detect_target()).planned)
    assert code.library.code and not code.facts
    np.testing.assert_array_equal(_run(code), random((24, 24), "float32"))


def test_an_external_module_is_kept_beside_the_library() -> None:
    @tvm.script.ir_module
    class Library:
        @tvm.script.tirx.prim_func
        def twice(x: tvm.script.tirx.Buffer((4,), "float32"), y: tvm.script.tirx.Buffer((4,), "float32")):
            for i in range(4):
                y[i] = x[i] * tvm.script.tirx.float32(2)

    def body(x: relax.Expr) -> relax.Expr:
        doubled = relax.op.call_dps_packed("twice", (x,), out_ty=relax.TensorType((4,), "float32"))
        return relax.op.add(doubled, x)

    mod = module(body, ((4,), "float32")).with_attr("external_mods", [tvm.compile(Library, detect_target()).mod])
    code = _finish(plan(mod, detect_target()).planned)
    assert code.library.code is None
    tripled = VirtualMachine(code.library.module)["main"](tvm.runtime.tensor(np.ones(4, "float32")))
    np.testing.assert_array_equal(tripled.numpy(), np.full(4, 3, "float32"))


@pass_instrument
class _Failing:
    """Fails in the part that has a kernel of this name."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name == "tirx.MakePackedAPI" and self.kernel in [var.name_hint for var in mod.functions]:
            raise ValueError(f"no code for {self.kernel}")


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_any_part_is_raised(threads: int) -> None:
    planned = _planned()
    for name in scheduled(planned):
        with tvm.transform.PassContext(instruments=[_Failing(name)]), pytest.raises(CompileError, match=name):
            _finish(planned, threads)
