"""Storage is shared as TVM plans it, without a comparison of what computed sizes are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm_ffi
from tvm import IRModule, relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.kernels.state.planning import PlanMemory


@I.ir_module
class Halves:
    @R.function(pure=False)
    def main(x: R.Tensor(("n", "m", "k"), "float32")) -> R.Tensor((1,), "float32"):
        n, m, k = T.int64(), T.int64(), T.int64()
        a = R.builtin.alloc_tensor(R.shape([(n + m) // 2, 8]), "float32", R.prim_value(0))
        _ = R.call_packed("fill", a, ty_args=R.Tuple)
        b = R.builtin.alloc_tensor(R.shape([T.min(n * k, 300)]), "float32", R.prim_value(0))
        _ = R.call_packed("read", a, b, ty_args=R.Tuple)
        c = R.builtin.alloc_tensor(R.shape([4, (n + m) // 2, 2]), "float32", R.prim_value(0))
        _ = R.call_packed("read", b, c, ty_args=R.Tuple)
        d = R.builtin.alloc_tensor(R.shape([1]), "float32", R.prim_value(0))
        _ = R.call_packed("read", c, d, ty_args=R.Tuple)
        return d


def test_tensors_of_a_computed_size_share_storage_and_sizes_with_a_bound_have_it() -> None:
    planned = PlanMemory()(Halves)
    assert tvm_ffi.structural_equal(planned, relax.transform.StaticPlanBlockMemory()(Halves))
    script = planned["main"].script()
    assert script.count("alloc_storage") == 2 and "R.shape([1200])" in script


def test_computed_sizes_are_not_taken_apart_to_compare_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, given = relax.transform.StaticPlanBlockMemory, []

    def planned() -> Callable[[IRModule], IRModule]:
        return lambda mod: given.append(mod["main"].script()) or plan()(mod)

    monkeypatch.setattr(relax.transform, "StaticPlanBlockMemory", planned)
    mod = PlanMemory()(Halves)
    assert "(n + m) // 2" not in given[0] and "(n + m) // 2" in mod["main"].script()
