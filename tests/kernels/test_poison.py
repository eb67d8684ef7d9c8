"""Memory that nothing has written, and memory that nothing should read any more, is NaN where the switch is on."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import vm
from autocast.errors import AutocastError
from autocast.kernels import detect_target
from autocast.kernels.extents import i64
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.vector.llvm_ir import conversions_and_accesses
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function
from autocast.runtime.poison import POISON
from tests.kernels.compiling import compile_kernels
from tests.kernels.modules import planned_main


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "poison")


@I.ir_module
class _Forgetful:
    """A kernel that writes every other element only."""

    @T.prim_func(private=True, s_tir=True)
    def even(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(4):
            with T.sblock("even"):
                v = T.axis.spatial(4, i)
                y[v * 2] = x[v * 2]

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        cls = _Forgetful
        y = R.call_tir(cls.even, (x,), out_ty=R.Tensor((8,), "float32"))
        return y


def test_what_a_kernel_forgets_to_write_is_nan() -> None:
    x = np.arange(8, dtype="float32")
    for _ in range(2):
        np.testing.assert_array_equal(vm.compile(_Forgetful)(x), np.where(np.arange(8) % 2 == 0, x, np.nan))


@pytest.mark.parametrize(
    ("dtype", "is_poison"),
    [("float32", np.isnan), ("float16", np.isnan), ("int64", lambda x: x > 2**62), ("bool", lambda x: x)],
)
def test_every_dtype_has_its_poison(dtype: str, is_poison) -> None:
    tensor = tvm.runtime.tensor(np.zeros((3, 5), dtype))
    tvm.get_global_func(POISON)(tensor)
    assert is_poison(tensor.numpy()).all()


def test_a_tensor_is_poisoned_when_it_is_allocated_and_when_it_dies() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32"), v: R.Tensor((8, 4), "float32")):
            h = R.matmul(x, w)
            y = R.matmul(h, v)
            return y

    planned = planned_main(Module)
    calls = [binding.value for block in planned.body.blocks for binding in block.bindings]
    names = [str(getattr(call.op, "global_symbol", getattr(call.op, "name_hint", ""))) for call in calls]
    poisoned = [call.args[0].name for call, name in zip(calls, names, strict=True) if name == POISON]
    assert len(poisoned) == 3  # the intermediate twice, the result once
    assert len(set(poisoned)) == 2
    assert names.index(POISON) < next(i for i, name in enumerate(names) if name.startswith("product"))


def test_a_result_that_a_private_function_hands_through_stays_whole() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def both(a: R.Tensor((4, 8), "float32")) -> R.Tuple(R.Tensor((4, 8), "float32"), R.Tensor((4, 8), "float32")):
            b = R.negative(a)
            t = (a, b)
            return t

        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            cls = Module
            z = R.exp(x)
            p = cls.both(z)
            first = p[0]
            y = R.sin(first)
            return y

    x = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)
    np.testing.assert_allclose(vm.compile(Module)(x), np.sin(np.exp(x.astype("float64"))), rtol=1e-6)


def test_the_workspace_of_a_kernel_is_nan() -> None:
    target = detect_target()
    unit = VectorUnit(instruction_set(target))
    with kernel_function("main") as finished:
        out = T.arg("out", T.buffer((16,), "float32"))
        with importing(conversions_and_accesses(unit.isa)):
            workspace = unit.scratch(1024, "float32")
            for start in range(0, 16, unit.lanes):
                unit.store(out, i64(start), unit.load(workspace, i64(512 + start)))
    out = tvm.runtime.tensor(np.zeros(16, "float32"))
    compile_kernels({"main": finished()}, target)["main"](out)
    assert np.isnan(out.numpy()).all()


def test_without_the_switch_nothing_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOCAST_DEBUG")
    assert POISON not in planned_main(autocast.from_relax(_Forgetful)).script()


def test_what_a_kernel_writes_behind_a_tensor_is_an_error_that_names_it() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def beyond(x: T.handle, y: T.handle):
            n = T.int64()
            _, out = T.match_buffer(x, (n,)), T.match_buffer(y, (n,))
            T.evaluate(T.call_extern("handle", "memset", out.data, 0, n * 4 + 8))

        @R.function
        def main(x: R.Tensor(("n",), "float32")):
            n = T.int64()
            cls = Module
            h = R.call_tir(cls.beyond, (x,), out_ty=R.Tensor((n,), "float32"))
            y = R.add(h, x)
            return y, h

    executable = vm.compile(Module)
    for size in (0, 1, 7, 64):
        with pytest.raises(
            AutocastError, match=rf"\({size},\): a kernel wrote behind it, at byte 0 .*: beyond, elementwise_add"
        ):
            executable(np.zeros(size, "float32"))
