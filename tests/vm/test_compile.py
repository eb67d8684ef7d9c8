"""Compiling: once per model, for devices and levels that exist."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import tvm

from autocast import kernels, vm
from autocast.errors import IllFormedModuleError, UnsupportedError
from tests.vm.modules import dense, square


def test_a_model_is_compiled_once():
    model = square("float32")
    assert vm.compile(model) is vm.compile(model, "cpu")


def test_another_model_with_the_same_module_shares_its_program_and_has_parameters_of_its_own():
    model = dense()
    doubled = model.replace(params={"w": tvm.runtime.tensor(2 * model.params["w"].numpy())})
    first, second = vm.compile(model), vm.compile(doubled)
    assert first is not second
    assert first.program is second.program
    x, n = torch.randn(4, 16), torch.tensor(0.0)
    torch.testing.assert_close(second(x, n)[1], 2 * first(x, n)[1])


def test_a_module_whose_literals_differ_has_a_program_of_its_own():
    def plus(number):
        builder = tvm.relax.BlockBuilder()
        x = tvm.relax.Var("x", tvm.relax.TensorType((3,), "float32"))
        with builder.function("main", [x]):
            total = tvm.relax.op.add(x, tvm.relax.const([number, 0.0, 0.0], "float32"))
            builder.emit_func_output(builder.emit(total))
        return builder.get()

    x = torch.zeros(3)
    assert [float(vm.compile(plus(number))(x)[0]) for number in (1.0, 2.0)] == [1.0, 2.0]
    assert vm.compile(plus(1.0)).program is vm.compile(plus(1.0)).program


def test_a_watched_compilation_really_compiles(monkeypatch, capsys):
    model = square("float32")
    program = vm.compile(model).program
    monkeypatch.setenv("AUTOCAST_DEBUG", "1")
    assert vm.compile(model.replace()).program is not program
    assert "kernels: legalize" in capsys.readouterr().err


def test_another_target_or_level_is_compiled_for_itself():
    model = square("float32")
    portable = vm.compile(model, target=tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}))
    assert portable is not vm.compile(model)
    assert vm.compile(model, opt_level=0) is not vm.compile(model)
    assert torch.equal(portable(torch.full((3, 5), 2.0)), torch.full((3, 5), 4.0))


def test_a_models_executables_go_with_it():
    model = square("float32")
    executable = weakref.ref(vm.compile(model))
    del model
    gc.collect()
    assert executable() is None


def test_an_ir_module_takes_its_parameters_as_inputs():
    model = dense()
    x, n = torch.randn(4, 16), torch.tensor(1.0)
    weight = torch.from_dlpack(model.params["w"])
    torch.testing.assert_close(vm.compile(model.mod)(x, n, weight)[1], x @ weight + 1.0)


def test_other_devices_are_refused_and_the_legal_ones_listed():
    with pytest.raises(UnsupportedError, match="device 'tpu' is not supported, expected one of cpu, torch:cpu"):
        vm.compile(square("float32"), "tpu")


@pytest.mark.parametrize("level", [-1, 4, "3", True])
def test_opt_level_is_0_to_3(level):
    with pytest.raises(UnsupportedError, match="expected 0, 1, 2 or 3"):
        vm.compile(square("float32"), opt_level=level)


def test_a_module_without_main_is_refused():
    mod = tvm.IRModule({"other": square("float32").main.with_attr("global_symbol", "other")})
    with pytest.raises(IllFormedModuleError, match=r"functions \['other'\], expected a Relax function 'main'"):
        vm.compile(mod)


def test_the_program_tells_the_plan_and_the_kernels():
    executable = vm.compile(square("float32"), target=kernels.detect_target())
    assert "allocate" in [step[0] for step in executable.program.functions["main"].steps]
    (kernel,) = executable.program.kernels
    assert "multiply" in kernel
    assert set(executable.seconds) == {"lower", "generate"}
