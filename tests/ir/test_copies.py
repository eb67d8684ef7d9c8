"""Copies of functions compute the same, and share no variables with them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax
from autocast.ir import all_bindings, with_new_variables


@I.ir_module
class Everything:
    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        k: R.Prim("int64"),
        small: R.Prim("int32"),
        s: R.Shape(["a", "k"]),
        flag: R.Tensor((), "bool"),
        t: R.Tuple(R.Tensor, R.Shape, R.Object),
    ):
        n = T.int64()
        a = T.int64()
        m = T.int64()

        @R.function
        def double(y: R.Tensor(("b", 8), "float32")):
            return R.add(y, y)

        y = R.strided_slice(x, axes=[0], begin=[k - 1], end=[n])
        if flag:
            z = double(R.ones(R.shape([T.Select(T.Not(k < a), k, a), 8]), "float32"))
        else:
            z = R.match_cast(y, R.Tensor((m, 8), "float32"))
        with R.dataflow():
            c = R.call_pure_packed("f", x, R.str("name"), ty_args=R.Tensor((a // 2, n), "float32"))
            d = R.concat((y, z))
            R.output(c, d)
        return c, d, t[0], R.prim_value(T.Cast("int64", small) + k), s


def test_a_copy_is_structurally_equal() -> None:
    main = Everything["main"]
    assert tvm_ffi.structural_equal(with_new_variables(main), main)


def test_a_copy_shares_no_variables() -> None:
    main = Everything["main"]
    copy = with_new_variables(main)
    bound = [[*f.params, *(b.var for b in all_bindings(f.body))] for f in (main, copy)]
    sizes = [relax.analysis.defined_symbolic_vars(f) for f in (main, copy)]
    for ours, others in (bound, sizes):
        assert len(ours) == len(others)
        assert {*map(hash, ours)}.isdisjoint(map(hash, others))
    assert not relax.analysis.free_vars(copy)
    assert not relax.analysis.free_symbolic_vars(copy)


def test_a_module_may_hold_a_function_and_its_copy() -> None:
    main = Everything["main"]
    copy = with_new_variables(main).with_attr("global_symbol", "copy")
    relax.analysis.well_formed(tvm.IRModule({"main": main, "copy": copy}))


@pytest.mark.parametrize("prepare", [lambda model: model, amp.autocast])
@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_slices_from_a_begin_that_is_known_at_run_time(prepare: object, flag: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), count: R.Tensor(("k",), "float32"), flag: R.Tensor((), "bool")):
            n = T.int64()
            k = T.int64()
            if flag:
                y = R.sum(R.strided_slice(x, axes=[0], begin=[k - 4], end=[n]), axis=[0])
            else:
                y = R.sum(R.strided_slice(count, axes=[0], begin=[k - 2], end=[k]))
            return y

    model = prepare(from_relax(Module))
    x = np.arange(24, dtype="float32").reshape(6, 4)
    for count in (1, 6):
        y = model(x, np.ones(count, "float32"), np.array(flag))
        np.testing.assert_array_equal(y, x[count - 4 :].sum(0) if flag else np.ones(count)[count - 2 :].sum())
