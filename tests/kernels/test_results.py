"""What functions return is compared, after every phase, with what the module that went in says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.errors import CompileError
from autocast.ir import is_op, relax_functions
from autocast.kernels import pipeline
from autocast.kernels.results import Results
from tests.kernels.modules import module

Change = Callable[[relax.Expr], relax.Expr]


@I.ir_module
class Module:
    """Two public functions, of which one returns tensors in a tuple in a tuple, and a private one."""

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        cls = Module
        with R.dataflow():
            y = cls.inner(x)
            s = R.sum(y, axis=[0])
            z = R.exp(y)
            gv = (s, (z, y))
            R.output(gv)
        return gv

    @R.function
    def other(x: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
        y = R.exp(x)
        return y

    @R.function(private=True)
    def inner(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        y = R.negative(x)
        return y


@mutator
class _Breaking(PyExprMutator):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        return self.change(self.builder_.normalize(super().visit_call_(call)))


def _breaking(change: Change) -> pipeline.Phase:
    """A phase that makes something else of calls."""

    def run(mod: tvm.IRModule, _: object) -> tvm.IRModule:
        functions = {var: _Breaking(change).visit_expr(function) for var, function in relax_functions(mod)}
        return tvm.IRModule({**mod.functions, **functions}, attrs=mod.attrs)

    return pipeline.Phase("broken", run)


def _exp(make: Change) -> Change:
    return lambda call: make(call) if is_op(call, "relax.exp") else call


def _compile_with(monkeypatch: pytest.MonkeyPatch, change: Change, mod: tvm.IRModule = Module) -> CompileError:
    at = [phase.name for phase in pipeline.LOWERING].index("canonicalize")
    phases = (*pipeline.LOWERING[:at], _breaking(change), *pipeline.LOWERING[at:])
    monkeypatch.setattr(pipeline, "LOWERING", phases)
    with pytest.raises(CompileError) as failure:
        vm.compile(mod)
    return failure.value


_CHANGES: dict[str, tuple[Change, str]] = {
    "dtype": (lambda call: relax.op.astype(call, "float16"), '"float16"'),
    "axes": (lambda call: relax.op.permute_dims(call), "R.Tensor((T.int64(4), n)"),
    "rank": (lambda call: relax.op.expand_dims(call, 0), "R.Tensor((T.int64(1), n, T.int64(4))"),
    "size": (lambda call: relax.op.concat([call, call], axis=0), "R.Tensor((n * T.int64(2), T.int64(4))"),
}


@pytest.mark.parametrize("change", list(_CHANGES))
def test_another_type_of_a_field_is_an_error_that_names_the_phase_the_function_and_both_types(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOCAST_DUMP", str(tmp_path))
    make, found = _CHANGES[change]
    error = _compile_with(monkeypatch, _exp(lambda call: make(call) if len(call.ty.shape) == 2 else call))
    assert (error.phase, error.function) == ("broken", "main")
    text = str(error)
    assert found in text
    declared = 'R.Tensor((n, T.int64(4)), dtype="float32")'
    assert f'its module has T.Tuple(R.Tensor((T.int64(4),), dtype="float32"), T.Tuple({declared}, {declared}))' in text
    assert str(error.path) in text
    assert Path(error.path).exists()


def test_functions_beside_main_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    error = _compile_with(
        monkeypatch, _exp(lambda call: relax.op.astype(call, "float64") if len(call.ty.shape) == 1 else call)
    )
    assert error.function == "other"


def test_a_private_function_that_returns_something_else_is_found_when_all_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(call: relax.Call) -> relax.Expr:
        return relax.op.astype(call, "float16") if is_op(call, "relax.negative") else call

    error = _compile_with(monkeypatch, change)
    assert error.phase == "check_types"
    assert re.search(r'@inner returns R.Tensor\(\(n, .*\), dtype="float16"\), and %y expects', str(error))


def test_a_kernel_that_writes_another_dtype_than_its_call_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(mod: tvm.IRModule, _: object) -> tvm.IRModule:
        """The module, in which each kernel writes float16."""
        a = tvm.te.placeholder((4,), "float32")
        kernel = tvm.te.create_prim_func([a, tvm.te.compute(a.shape, lambda i: a[i].astype("float16"))])
        names = [var for var, function in mod.functions.items() if isinstance(function, tvm.tirx.PrimFunc)]
        return tvm.IRModule({**mod.functions, **dict.fromkeys(names, kernel)}, attrs=mod.attrs)

    monkeypatch.setattr(pipeline, "LOWERING", (*pipeline.LOWERING, pipeline.Phase("broken", run)))
    with pytest.raises(CompileError, match=r"the phase 'check_types' failed in @main.*float16"):
        vm.compile(module(relax.op.exp, ((4,), "float32")))


def _flat(result: Callable[[tvm.tirx.Var], relax.TensorType], name: str = "n") -> tvm.IRModule:
    """A function of a tensor (n, 4) that returns one of this type."""
    n = tvm.tirx.Var(name, "int64")
    x = relax.Var("x", relax.TensorType([n, 4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.call_pure_packed("any", x, ty_args=result(n))))
    return builder.get()


def _sized(size: Callable[[tvm.tirx.Var], object], name: str = "n") -> tvm.IRModule:
    return _flat(lambda n: relax.TensorType([size(n)], "float32"), name)


def test_sizes_are_compared_as_formulas_of_what_is_taken() -> None:
    results = Results(_sized(lambda n: n * 4))
    results.check("another name", _sized(lambda n: n * 4, "rows"))
    results.check("another formula", _sized(lambda n: 3 * n + n, "rows"))
    with pytest.raises(CompileError, match=re.escape("return R.Tensor((rows * 4 + 1,)")):
        results.check("wrong", _sized(lambda n: n * 4 + 1, "rows"))


def test_bounds_of_sizes_count() -> None:
    def bounded(mod: tvm.IRModule, bound: str, value: int) -> tvm.IRModule:
        return tvm.IRModule({"main": mod["main"].with_attr(bound, {"n": value})})

    smallest = _sized(lambda n: tvm.tirx.Min(n, tvm.tirx.IntImm("int64", 8)))
    results = Results(bounded(smallest, "tir_var_upper_bound", 8))
    results.check("the smaller one is known", _sized(lambda n: n))
    with pytest.raises(CompileError, match="wrong"):
        Results(smallest).check("wrong", _sized(lambda n: n))


def test_what_is_not_known_may_be_anything() -> None:
    vague = _flat(lambda n: relax.TensorType(ndim=1))
    Results(_sized(lambda n: n)).check("says less", vague)
    Results(vague).check("says more", _sized(lambda n: n * 4))
