"""Functions that were grouped for other compilers compute what their text says."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax, vm
from autocast.ir import first_order, relax_functions
from tests.ir.ways import W, X, check


def _convolutions() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((2, 3, 5, 5), "float32"),
            v: R.Tensor((4, 3, 3, 3), "float32"),
            w: R.Tensor((4, 4, 3, 3), "float32"),
        ) -> R.Tensor((2, 4, 5, 5), "float32"):
            with R.dataflow():
                a = R.nn.conv2d(x, v, padding=(1, 1))
                b = R.nn.relu(a)
                c = R.nn.conv2d(b, w, padding=(1, 1))
                d = R.nn.relu(c)
                R.output(d)
            return d

    return Module


_PATTERN = [("dnnl.conv2d_relu", is_op("relax.nn.relu")(is_op("relax.nn.conv2d")(wildcard(), wildcard())))]
_GROUP = relax.transform.FuseOpsByPattern

GROUPS = {
    "FuseOpsByPattern": _GROUP(_PATTERN),
    "FuseOpsByPattern, annotated": _GROUP(_PATTERN, annotate_codegen=True),
    "MergeCompositeFunctions": tvm.transform.Sequential([_GROUP(_PATTERN), relax.transform.MergeCompositeFunctions()]),
    "FuseOps": tvm.transform.Sequential(
        [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    ),
}


@pytest.mark.parametrize("grouping", GROUPS)
def test_what_was_grouped_for_another_compiler_computes_the_same(grouping: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-1, 2, shape).astype("float32") for shape in ((2, 3, 5, 5), (4, 3, 3, 3), (4, 4, 3, 3))]
    mod = GROUPS[grouping](_convolutions())
    assert len(list(relax_functions(mod))) > 1
    check(mod, vm.compile(_convolutions())(*inputs), *inputs)


def test_operators_among_primfuncs_in_a_group_are_lowered() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def double(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
            for i, j in T.grid(4, 4):
                with T.sblock("double"):
                    p, q = T.axis.remap("SS", [i, j])
                    b[p, q] = a[p, q] * T.float32(2)

        @R.function(private=True)
        def fused(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            R.func_attr({"Primitive": True})
            cls = Module
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((4, 4), "float32"))
                c = R.add(b, w)
                R.output(c)
            return c

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            with R.dataflow():
                y = cls.fused(x, w)
                R.output(y)
            return y

    check(Module, 2 * (X @ W) + W, X, W)


def test_a_group_may_be_main() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1, 2, shape).astype("float32") for shape in ((2, 3, 5, 5), (4, 3, 3, 3)))
    results = []
    for grouping in ("FuseOps", "FuseOpsByPattern"):
        mod = GROUPS[grouping](_convolutions())
        name = next(
            var.name_hint
            for var, function in relax_functions(mod)
            if var.name_hint != "main" and [int(size) for size in function.params[0].ty.shape.values][1] == 3
        )
        results.append(vm.compile(from_relax(mod, function=name))(x, w))
    np.testing.assert_array_equal(*results)


def test_a_module_without_any_of_it_is_left_alone() -> None:
    mod = _convolutions()
    assert first_order(mod) is mod
