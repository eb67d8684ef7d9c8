"""Modules from other stages of TVM's pipelines run as they do there."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax, vm
from autocast.kernels import detect_target
from autocast.kernels.phases.leftovers import remove_leftovers

X = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")


@I.ir_module
class Loops:
    """PrimFuncs of plain loops, without blocks; in both of TVM's dialects."""

    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            b[i, j] = a[i, j] * T.float32(2)

    @T.prim_func
    def halve(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            b[i, j] = a[i, j] * T.float32(0.5)

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Loops
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 4), "float32"))
            b = R.call_tir_with_grad(
                cls.double, (a,), out_ty=R.Tensor((4, 4), "float32"), te_grad_name="any", te_grad_kwargs={}
            )
            c = R.call_tir(cls.halve, (b,), out_ty=R.Tensor((4, 4), "float32"))
            R.output(c)
        return c


def test_primfuncs_of_plain_loops_are_compiled_and_gradients_forgotten() -> None:
    np.testing.assert_array_equal(vm.compile(Loops)(X), 2 * X)


def _stages() -> dict[str, tvm.IRModule]:
    """What TVM's own pipeline makes of two operators, after each of its passes."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.reshape(a, (16,))
                c = R.reshape(R.add(b, b), (4, 4))
                R.output(c)
            return c

    passes = (
        *(relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant()),
        *(relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.RewriteDataflowReshape()),
        *(relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite()),
        *(
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
        ),
        *(relax.transform.LowerRuntimeBuiltin(), relax.transform.ComputePrimValue(), relax.transform.VMShapeLower()),
    )
    stages, mod = {}, Module
    with detect_target():
        for each in passes:
            stages[each.info.name] = mod = each(mod)
    return stages


STAGES = _stages()


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_of_any_stage_runs(stage: str) -> None:
    np.testing.assert_array_equal(vm.compile(STAGES[stage])(X), 2 * np.maximum(X, 0))


def test_what_has_no_leftovers_is_left_alone() -> None:
    mod = STAGES["LegalizeOps"]
    tvm.ir.assert_structural_equal(remove_leftovers(mod), mod)


def test_a_prefix_of_symbols_that_tvm_would_link_is_none_of_our_kernels() -> None:
    @I.ir_module
    class Prefixed:
        I.module_attrs({"system_lib_prefix": "mine_"})

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            return R.nn.relu(R.matmul(x, w))

    np.testing.assert_allclose(vm.compile(from_relax(Prefixed, [X]))(X), np.maximum(X @ X, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("planned", [False, True])
def test_memory_that_a_module_allocates_for_each_of_its_kernels_stays_apart(planned: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a, b = R.matmul(x, w), R.exp(x)
                c = R.subtract(R.matmul(a, b), R.tanh(b))
                d = R.add(a, R.multiply(b, c))
                R.output(d)
            return d

    stages = [relax.transform.LegalizeOps(), relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking()]
    stages += [relax.transform.CallTIRRewrite(), *[relax.transform.StaticPlanBlockMemory()][: int(planned)]]
    executable = vm.compile(from_relax(tvm.transform.Sequential(stages)(Module), [X]))
    x, e = X.astype("float64"), np.exp(X.astype("float64"))
    expected = x @ X + e * (x @ X @ e - np.tanh(e))
    for _ in range(2):
        np.testing.assert_allclose(executable(X), expected, rtol=1e-4, atol=1e-4)
