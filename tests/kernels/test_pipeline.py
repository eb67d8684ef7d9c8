"""Whole modules: every architecture in float32, and the constructs that models consist of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax.analysis import post_order_visit
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.errors import UnsupportedError
from autocast.frontend import from_torch
from autocast.kernels import detect_target, finish, lower, plan
from autocast.kernels.fallback.schedule import SCHEDULED
from autocast.model import Model
from autocast.runtime.program import PREPARE
from autocast.training import SGD, CrossEntropy, training_step
from tests.architectures import ARCHITECTURES, imported
from tests.kernels.compiling import machine_of
from tests.kernels.modules import error, module, random, run, scheduled


def prepared(machine: relax.VirtualMachine, model: Model) -> Sequence[tvm.runtime.Tensor]:
    """The arguments of main after its inputs."""
    try:
        function = machine[PREPARE]
    except AttributeError:
        return list(model.params.values())
    return function(*model.params.values())


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, True) for name in ARCHITECTURES), ("bert", False), ("resnet", False)]
)
def test_architectures_match_torch_in_float32(name: str, dynamic: bool) -> None:
    architecture = ARCHITECTURES[name]()
    model = imported(name, dynamic)
    args, kwargs = architecture.inputs(3) if dynamic else (architecture.args, architecture.kwargs)
    inputs = [tvm.runtime.tensor(tensor.numpy()) for tensor in (*args, *kwargs.values())]
    machine = machine_of(model.mod)
    outputs = machine["main"](*inputs, *prepared(machine, model))
    outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    for output, expected in zip(outputs, architecture.reference(*args, **kwargs), strict=True):
        assert error(output.numpy(), expected.double().numpy()) < 1e-5


def test_conditions_tuples_and_several_functions() -> None:
    @I.ir_module
    class Module:
        @R.function
        def twice(x: R.Tensor((4, 6), "bfloat16")) -> R.Tensor((4, 6), "bfloat16"):
            y: R.Tensor((4, 6), "bfloat16") = R.add(x, x)
            return y

        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((4, 6), "bfloat16")):
            cls = Module
            if flag:
                a = R.exp(x)
                y: R.Tensor((4, 6), "bfloat16") = cls.twice(a)
            else:
                b = R.nn.softmax(x)
                y: R.Tensor((4, 6), "bfloat16") = b
            with R.dataflow():
                pair = (y, R.sum(y, axis=[1]))
                R.output(pair)
            return pair

    x = random((4, 6), "bfloat16")
    wide = x.astype("float64")
    for flag, expected in ((True, 2 * np.exp(wide)), (False, np.exp(wide) / np.exp(wide).sum(-1, keepdims=True))):
        values, sums = run(Module, np.array(flag), x)
        assert error(values, expected) < 2**-7
        assert error(sums, values.astype("float64").sum(1)) < 2**-8


def test_prim_funcs_of_the_module_are_compiled_as_they_are() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def triple(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
            for i, j in T.grid(4, 6):
                with T.sblock("triple"):
                    a, b = T.axis.remap("SS", [i, j])
                    y[a, b] = x[a, b] * T.float32(3)

        @R.function
        def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 6), "float32"):
            cls = Module
            with R.dataflow():
                a = R.exp(x)
                b = R.call_tir(cls.triple, (a,), out_ty=R.Tensor((4, 6), "float32"))
                c = R.add(b, b)
                R.output(c)
            return c

    lowered = scheduled(lower(Module, detect_target()))["triple"]
    tvm.ir.assert_structural_equal(lowered.body, Module["triple"].body)
    x = random((4, 6), "float32")
    assert error(run(Module, x)[0], 6 * np.exp(x.astype("float64"))) < 1e-6


def test_every_prim_func_ends_up_scheduled() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.softmax(relax.op.nn.relu(relax.op.matmul(x, w)))

    functions = scheduled(lower(module(body, ((4, 8), "float32"), ((8, 6), "float32")), detect_target()))
    assert functions and all(SCHEDULED in function.attrs for function in functions.values())


def test_the_plan_shows_the_storage_that_runs() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.permute_dims(relax.op.nn.softmax(relax.op.permute_dims(relax.op.nn.softmax(x))))

    planned = plan(module(body, ((8, 16), "float32")), detect_target()).planned.script()
    assert "R.memory.alloc_storage" in planned and "R.nn.softmax" not in planned


def test_debugging_shows_phases_and_writes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "1")
    monkeypatch.setenv("AUTOCAST_DUMP", str(tmp_path))
    lower(module(relax.op.exp, ((8, 16), "float32")), detect_target())
    assert "kernels: legalize" in capsys.readouterr().err
    assert any(path.name.endswith("compute_in_float32.py") for path in tmp_path.iterdir())


def test_a_dump_into_a_file_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("AUTOCAST_DUMP", str(tmp_path / "taken"))
    with pytest.raises(UnsupportedError, match=r"AUTOCAST_DUMP=.*taken: .* cannot be written"):
        lower(module(relax.op.exp, ((4, 4), "float32")), detect_target())


def test_debugging_shows_the_kernel_of_each_call_and_the_rule_that_made_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.cumsum(relax.op.nn.softmax(relax.op.matmul(x, w)), axis=1)

    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    lower(module(body, ((8, 16), "float32"), ((16, 24), "float32")), detect_target())
    calls = [line.split()[1:] for line in capsys.readouterr().err.splitlines() if " main: " in line]
    assert [rule for rule, *_ in calls][:2] == ["products", "rows"]
    assert calls[0][1].startswith("product0_")
    assert calls[-1][-2:] == ["main:", "gv"]


@pytest.mark.parametrize("owns_a_function", [True, False])
def test_only_buffers_of_functions_that_came_with_the_module_are_shrunk(owns_a_function: bool) -> None:
    mod = module(relax.op.exp, ((8, 16), "float32"))
    if owns_a_function:
        mod = relax.transform.LegalizeOps()(mod)
    disabled = []

    def describe(_: object) -> None:
        disabled.append("s_tir.CompactBufferAllocation" in tvm.transform.PassContext.current().disabled_pass)

    finish(plan(mod, detect_target()).planned, detect_target(), describe=describe)
    assert disabled == [not owns_a_function]


def test_only_kernels_that_are_called_are_planned() -> None:
    model = from_torch(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24, 8)), (torch.randn(4, 2, 12),))
    step = training_step(model, CrossEntropy(), SGD(momentum=0.9))
    planned = plan(step.mod, detect_target()).planned
    called: set[str] = set()
    for function in planned.functions.values():
        if isinstance(function, relax.Function):
            post_order_visit(function, lambda e: called.add(e.name_hint) if isinstance(e, tvm.ir.GlobalVar) else None)
    assert any(name.endswith("_in_place") for name in called)
    assert set(scheduled(planned)) == called
