"""Storage is shared as TVM plans it, without a comparison of what computed sizes are made of."""

from __future__ import annotations

import time

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


def _chain(length: int) -> IRModule:
    """Tensors of other sizes each, none of which is read by all but the next."""
    builder = relax.BlockBuilder()
    names = [T.int64() for _ in range(6)]
    x = relax.Var("x", R.Tensor(names, "float32"))
    with builder.function("main", [x], pure=False):
        before = None
        for at in range(length):
            shape = [(sum(names, T.IntImm("int64", at)) // 2 + 1) // 2 for _ in range(2)]
            tensor = builder.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), "float32", 0))
            read = [tensor] if before is None else [before, tensor]
            builder.emit(relax.Call(relax.ExternFunc("read"), read, ty_args=[R.Tuple([])]))
            before = tensor
        builder.emit_func_output(relax.const(1.0))
    return builder.get()


def test_tensors_of_a_computed_size_share_storage_and_sizes_with_a_bound_have_it() -> None:
    planned = PlanMemory()(Halves)
    assert tvm_ffi.structural_equal(planned, relax.transform.StaticPlanBlockMemory()(Halves))
    script = planned["main"].script()
    assert script.count("alloc_storage") == 2 and "R.shape([1200])" in script


def test_computed_sizes_are_not_taken_apart_to_compare_them() -> None:
    mod = _chain(40)
    seconds = []
    for run in (PlanMemory(), relax.transform.StaticPlanBlockMemory()):
        began = time.process_time()
        planned = run(mod)
        seconds.append(time.process_time() - began)
        assert planned["main"].script().count("alloc_storage") == 40
    assert seconds[0] < seconds[1] / 3
