"""Operators get their tuples, shapes and numbers written out, wherever those were bound."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp, vm
from autocast.ir import write_out_literals
from tests.kernels.modules import EPSILON, error


def test_bound_literals_move_to_the_operators_that_take_them() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")):
            t = (x, y)
            nested = (t, x)
            again = nested[0]
            a = R.concat(again, axis=0)
            axes = (R.prim_value(0),)
            b = R.strided_slice(x, axes, (R.prim_value(1),), (R.prim_value(3),))
            s = R.shape([2, 16])
            c = R.reshape(x, s)
            d = R.shape_of(x)
            e = R.zeros(d, "float32")
            return (a, b, c, e)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")):
            a = R.concat((x, y), axis=0)
            b = R.strided_slice(x, (R.prim_value(0),), (R.prim_value(1),), (R.prim_value(3),))
            c = R.reshape(x, R.shape([2, 16]))
            e = R.zeros(R.shape([4, 8]), "float32")
            return (a, b, c, e)

    tvm.ir.assert_structural_equal(write_out_literals(Before), Expected)


def test_a_tuple_that_something_else_makes_is_taken_apart() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(pair: R.Tuple(R.Tensor((4, 8), "float32"), R.Tensor((4, 8), "float32"))):
            a = R.stack(pair, axis=1)
            return a

    @I.ir_module
    class Expected:
        @R.function
        def main(pair: R.Tuple(R.Tensor((4, 8), "float32"), R.Tensor((4, 8), "float32"))):
            first = pair[0]
            second = pair[1]
            a = R.stack((first, second), axis=1)
            return a

    tvm.ir.assert_structural_equal(write_out_literals(Before), Expected)


def test_what_a_dataflow_block_hides_stays_in_it() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                e = R.exp(x)
                t = (e, x)
                R.output(t)
            a = R.concat(t, axis=0)
            return a

    after = write_out_literals(Before)
    tvm.relax.analysis.well_formed(after)  # raises where it is not
    assert len(after["main"].body.blocks[1].bindings) == 3  # two fields, and what they are joined to


@I.ir_module
class _Tuples:
    """Tuples from a block, from an `If`, from and to functions, nested, in blocks and outside of them."""

    @R.function(private=True)
    def pair(a: R.Tensor((32, 16), "float32")) -> R.Tuple(R.Tensor((32, 16), "float32"), R.Tensor((32, 16), "float32")):
        e = R.exp(a)
        f = R.negative(a)
        t = (e, f)
        return t

    @R.function(private=True)
    def join(
        t: R.Tuple(
            R.Tuple(R.Tensor((32, 16), "float32"), R.Tensor((32, 16), "float32")), R.Tensor((32, 16), "float32")
        ),
    ) -> R.Tensor((3, 32, 16), "float32"):
        u = t[0]
        g = u[0]
        h = u[1]
        k = t[1]
        fields = (g, h, k)
        return R.stack(fields, axis=0)

    @R.function
    def main(v: R.Tensor((32, 16), "float32"), w: R.Tensor((32, 16), "float32"), c: R.Tensor((), "bool")):
        cls = _Tuples
        with R.dataflow():
            t = (v, w)
            a = R.concat(t, axis=0)
            R.output(a)
        p = cls.pair(w)
        b = R.concat(p, axis=1)
        n = (p, a)
        n0 = n[0]
        d = R.stack(n0, axis=1)
        if c:
            r = (v, w)
        else:
            x = R.exp(v)
            r = (x, v)
        e = R.concat(r, axis=-1)
        q = (p, v)
        j = cls.join(q)
        s = R.shape([16, 32])
        m = R.reshape(v, s)
        mm = R.matmul(m, e)
        return (a, b, d, e, j, mm)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_tuples_that_are_bound_to_variables_hold_what_they_should(dtype: str | None) -> None:
    rng = np.random.default_rng(0)
    v, w = rng.standard_normal((2, 32, 16)).astype("float32")
    model = autocast.from_relax(_Tuples)
    executable = vm.compile(model if dtype is None else amp.autocast(model, dtype=dtype))
    wide = v.astype("float64"), w.astype("float64")
    pair = np.exp(wide[1]), -wide[1]
    for condition in (True, False):
        chosen = np.concatenate(wide if condition else (np.exp(wide[0]), wide[0]), -1)
        expected = [np.concatenate(wide), np.concatenate(pair, 1), np.stack(pair, 1), chosen]
        expected += [np.stack([*pair, wide[0]]), wide[0].reshape(16, 32) @ chosen]
        for got, exact in zip(executable(v, w, np.array(condition)), expected, strict=True):
            assert got.shape == exact.shape
            assert error(got, exact) < 4 * EPSILON[dtype or "float32"]


@I.ir_module
class _Shapes:
    """Shapes that only running tells, and tensors of such shapes."""

    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), sizes: R.Tensor((2,), "int64")):
        k = T.int64()
        s = R.shape_of(x)
        z = R.zeros(s, "float32")
        best = R.topk(z, k=2, axis=1, largest=True, dtype="int64")
        t = R.tensor_to_shape(sizes)
        o = R.ones(t, "float32")
        a = R.sum(o, axis=[0])
        u = R.match_cast(t, R.Shape([k, 3]))
        f = R.full(u, R.const(0.5, "float32"), dtype="float32")
        g = R.broadcast_to(f, R.shape([k, 3]))
        return (best, a, g)


def test_tensors_may_have_shapes_that_are_variables() -> None:
    executable = vm.compile(_Shapes)
    (values, indices), a, g = executable(np.ones((4, 5), "float32"), np.array([2, 3]))
    np.testing.assert_array_equal(values, np.zeros((4, 2)))
    np.testing.assert_array_equal(indices, np.tile([0, 1], (4, 1)))
    np.testing.assert_array_equal(a, np.full(3, 2.0))
    np.testing.assert_array_equal(g, np.full((2, 3), 0.5))
