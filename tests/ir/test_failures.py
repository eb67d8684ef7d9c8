"""A phase that fails says so: which, in which function, why, and in which file to find what repeats it."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.errors import CompileError, UnsupportedError
from autocast.kernels import generate, pipeline

_WEIGHT = relax.const(np.random.default_rng(0).standard_normal((4, 4)), "float32")


def _module() -> tvm.IRModule:
    """`main` calls `helper`, which reads a constant; `other` does neither."""

    @I.ir_module
    class Module:
        @R.function(private=True)
        def helper(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.matmul(x, w)
            return y

        @R.function
        def other(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.exp(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            y = cls.helper(x, w)
            return y

    mod = tvm.IRModule(Module.functions)
    helper = mod["helper"]
    result = relax.Var("z", helper.ret_ty)
    last = relax.BindingBlock([relax.VarBinding(result, relax.op.add(helper.body.body, _WEIGHT))])
    body = relax.BlockBuilder().normalize(relax.SeqExpr([*helper.body.blocks, last], result))
    mod["helper"] = relax.Function(helper.params, body, helper.ret_ty, helper.is_pure, helper.attrs)
    return mod


def _fails_on(name: str) -> Callable[..., Any]:
    """Fails on modules that have a function of this name."""

    def run(mod: tvm.IRModule, *rest: Any, **options: Any) -> tvm.IRModule:
        if name in [var.name_hint for var in mod.get_global_vars()]:
            raise ValueError(f"several\nlines about {name}")
        return mod

    return run


def _fails(*args: Any, **options: Any) -> NoReturn:
    raise ValueError("it just does")


@pytest.fixture(autouse=True)
def _dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOCAST_DUMP", str(tmp_path))


def _phase(monkeypatch: pytest.MonkeyPatch, name: str, function: str) -> None:
    fails = pipeline.Phase(name, _fails_on(function))
    phases = tuple(fails if phase.name == name else phase for phase in pipeline.LOWERING)
    monkeypatch.setattr(pipeline, "LOWERING", phases)


def _check(call: Callable[[], object], phase: str, function: str, tmp_path: Path) -> None:
    """`call` fails in `phase` and `function`, and so does the file that it writes."""
    with pytest.raises(CompileError) as failure:
        call()
    error = failure.value
    assert (error.phase, error.function) == (phase, function)
    assert f"the phase '{phase}' failed" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert Path(error.path).parent == tmp_path
    assert error.path in str(error)
    with pytest.raises(CompileError) as again:
        runpy.run_path(error.path)
    assert (again.value.phase, again.value.function) == (phase, function)
    if function:
        assert f"in @{function}: ValueError: lines about {function}" in str(again.value)


def test_a_phase_of_lowering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _phase(monkeypatch, "legalize", "helper")
    _check(lambda: vm.compile(_module()), "legalize", "helper", tmp_path)


def test_the_smallest_function_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _phase(monkeypatch, "canonicalize", "main")
    _check(lambda: vm.compile(_module()), "canonicalize", "main", tmp_path)


def test_a_model_is_repeated_with_its_parameters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _phase(monkeypatch, "prepare_parameters", "main")
    model = from_relax(_module(), {"w": np.ones((4, 4), "float32")})
    _check(lambda: vm.compile(model), "prepare_parameters", "main", tmp_path)
    texts = [path.read_text() for path in tmp_path.glob("autocast_failure_*.py")]
    assert all("('w', ('float32', [4, 4]))" in text for text in texts)


def test_a_pass_of_planning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = tvm.transform.module_pass(_fails_on("other"), opt_level=0, name="Fails")
    monkeypatch.setattr(pipeline, "PLANNING", (fails, *pipeline.PLANNING))
    _check(lambda: vm.compile(_module()), "Fails", "other", tmp_path)


def test_code_generation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "object_of", _fails)
    with pytest.raises(CompileError, match=r"the phase 'generate' failed in @.*ValueError: it just does"):
        vm.compile(_module())


def test_what_is_in_no_phase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["autocast.vm.compile"], "Executable", _fails)
    _check(lambda: vm.compile(_module()), "preparation", "", tmp_path)


@pytest.mark.parametrize(
    ("name", "phase"), [("solve", "solve"), ("CastRewriter", "rewrite"), ("check_erasure", "check")]
)
def test_the_parts_of_autocast(name: str, phase: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["autocast.passes.auto_cast"], name, _fails)
    _check(lambda: amp.autocast(_module(), policy="mp1"), phase, "", tmp_path)
    model = from_relax(_module(), {"w": np.ones((4, 4), "float32")})
    _check(lambda: amp.autocast(model), phase, "", tmp_path)


def test_the_import_of_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["autocast.frontend.relax"], "first_order", _fails_on("helper"))
    _check(lambda: from_relax(_module()), "first_order", "helper", tmp_path)


def test_a_primfunc_that_tvm_cannot_compile(tmp_path: Path) -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
            for i, j in T.grid(4, 4):
                with T.sblock("copy"):
                    p, q = T.axis.remap("SS", [i, j])
                    b[p, q] = T.call_intrin("float32", "tirx.tvm_mma_sync", a[p, q])

        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            cls = Module
            y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((4, 4), "float32"))
            return y

    with pytest.raises(CompileError, match="a PrimFunc of your own") as failure:
        vm.compile(Module)
    assert failure.value.function == "kernel"


def test_errors_raised_on_purpose_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> NoReturn:
        raise UnsupportedError("no")

    phases = (pipeline.Phase("refuses", refuses), *pipeline.LOWERING)
    monkeypatch.setattr(pipeline, "LOWERING", phases)
    with pytest.raises(UnsupportedError, match=re.escape("no")):
        vm.compile(_module())
