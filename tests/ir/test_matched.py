"""A call that a `match_cast` looks at is a binding like any other."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp, vm
from autocast.ir.matched import bind_matched_calls


def test_a_call_inside_a_match_cast_gets_a_variable() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                y = R.match_cast(R.nn.relu(x), R.Tensor((4, 8), "float32"))
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                value = R.nn.relu(x)
                y = R.match_cast(value, R.Tensor((4, 8), "float32"))
                R.output(y)
            return y

    after = bind_matched_calls(Before)
    tvm.ir.assert_structural_equal(after, Expected)
    assert bind_matched_calls(after).same_as(after)


def test_autocast_keeps_the_type_that_a_match_cast_promises() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 8), "float32"), c: R.Tensor((), "bool"), w: R.Tensor((8, 4), "float32")):
            if c:
                r = R.add(x, x)
            else:
                r = x
            first = R.const([1, 0], "int64")
            last = R.const([6, 8], "int64")
            step = R.const([1, 1], "int64")
            y = R.match_cast(R.dynamic_strided_slice(r, first, last, step), R.Tensor((5, 8), "float32"))
            z = R.matmul(y, w)
            return z

    rng = np.random.default_rng(0)
    x, w = rng.integers(-4, 5, (8, 8)).astype("float32"), rng.integers(-4, 5, (8, 4)).astype("float32")
    low = amp.autocast(autocast.from_relax(Module))
    assert tuple(low.mod["main"].ret_ty.shape.values) == (5, 4)
    np.testing.assert_array_equal(vm.compile(low)(x, np.array(False), w), x[1:6] @ w)
