"""Nested functions and closures that use sizes and shapes of what is around them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from tests.ir.ways import X, check


def test_a_nested_function_uses_sizes_of_the_function_around_it() -> None:
    n, m = T.Var("n", "int64"), T.Var("m", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n, m], "float32"))
    a = relax.Var("a", relax.TensorType([n], "float32"))
    body = relax.op.broadcast_to(a, relax.ShapeExpr([m, n]))
    inner = relax.Function([a], relax.SeqExpr([], body), relax.TensorType([m, n], "float32"))
    with builder.function("main", [x]):
        f = builder.emit(builder.normalize(inner), "inner")
        sums = builder.emit(relax.op.sum(x, axis=1))
        builder.emit_func_output(builder.emit(relax.Call(f, [sums])))
    check(builder.get(), np.broadcast_to(X[:3].sum(axis=1), (4, 3)), X[:3])


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_nested_function_makes_tensors_of_shapes_that_are_variables(dtype: str | None) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            @R.function
            def inner(y: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
                s = R.shape_of(y)
                z = R.ones(s, "float32")
                return R.add(z, y)

            return inner(x)

    model = from_relax(Module)
    executable = vm.compile(model if dtype is None else amp.autocast(model, dtype=dtype))
    np.testing.assert_array_equal(executable(np.ones((2, 3), "float32")), np.full((2, 3), 2.0))


def test_a_closure_captures_tensors_of_shapes_that_are_variables() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), v: R.Tensor((2,), "int64")) -> R.Tensor((), "float32"):
            n = T.int64()
            rows = R.shape([n, 4])
            ones = R.ones(rows, "float32")
            sizes = R.tensor_to_shape(v)
            more = R.ones(sizes, "float32")

            @R.function
            def inner(y: R.Tensor(("m", 4), "float32")) -> R.Tensor((), "float32"):
                return R.add(R.add(R.sum(ones), R.sum(more)), R.sum(y))

            return inner(x)

    check(Module, np.float32(12 + 10 + 24), np.full((3, 4), 2, "float32"), np.array([2, 5]))


def test_a_nested_function_slices_from_a_begin_that_is_known_at_run_time() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), count: R.Tensor(("k",), "float32")):
            @R.function
            def last(x: R.Tensor(("n", 4), "float32"), count: R.Tensor(("k",), "float32")):
                n = T.int64()
                k = T.int64()
                return R.strided_slice(x, axes=[0], begin=[k - 4], end=[n])

            return last(x, count)

    model = from_relax(Module)
    x = np.arange(24, dtype="float32").reshape(6, 4)
    for count in (1, 6):
        np.testing.assert_array_equal(model(x, np.zeros(count, "float32")), x[count - 4 :])


@pytest.mark.parametrize(
    "stage", [tvm.transform.Sequential([]), relax.transform.LegalizeOps()], ids=["as it is", "legal"]
)
def test_a_closure_takes_sizes_that_are_computed_of_those_around_it(stage: tvm.transform.Pass) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", "m", 4), "float32"), w: R.Tensor((4, 4), "float32"), c: R.Tensor((), "bool")):
            n, m = T.int64(), T.int64()
            rows = R.reshape(x, R.shape([n * m, 4]))

            @R.function
            def inner(y: R.Tensor((n * m, 4), "float32")) -> R.Tensor((n * m, 4), "float32"):
                return R.matmul(y, w)

            a = inner(rows)
            if c:
                b = R.exp(a)
            else:
                b = a
            return R.reshape(b, R.shape([n, m, 4]))

    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((2, 3, 4), "float32"), generator.standard_normal((4, 4), "float32")
    executable = vm.compile(from_relax(stage(Module)))
    for c, expected in ((True, np.exp(x @ w)), (False, x @ w)):
        np.testing.assert_allclose(executable(x, w, np.array(c)), expected, rtol=1e-4)
