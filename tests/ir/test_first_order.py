"""Nested functions, closures and functions grouped for other compilers compute what their text says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.errors import UnsupportedError
from autocast.ir import first_order, relax_functions

#: Small whole numbers: products and sums of a few of them are exact in every dtype.
X, Y, W = (np.random.default_rng(seed).integers(-2, 3, (4, 4)).astype("float32") for seed in range(3))

#: The ways from a module to an executable.
WAYS: dict[str, Callable[[tvm.IRModule], Any]] = {
    "as it is": lambda mod: mod,
    "as a model": from_relax,
    "autocast": amp.autocast,
    "autocast as a model": lambda mod: amp.autocast(from_relax(mod)),
}


def check(mod: tvm.IRModule, expected: np.ndarray, *inputs: np.ndarray) -> None:
    """Whatever way a module takes, its result is `expected`."""
    for name, way in WAYS.items():
        result = vm.compile(way(mod))(*inputs)
        np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.parametrize("flag", [True, False])
def test_a_closure_captures_the_result_of_an_if(flag: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")
        ) -> R.Tensor((4, 4), "float32"):
            if flag:
                g = R.matmul(x, w)
            else:
                g = R.add(x, x)

            @R.function
            def inner(y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                z = R.add(R.matmul(y, w), g)
                return z

            r = inner(w)
            s = R.add(r, g)
            return s

    g = X @ W if flag else X + X
    check(Module, W @ W + g + g, X, W, np.array(flag))


def test_a_closure_is_returned_and_called() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def adder(
            c: R.Tensor((4, 4), "float32"),
        ) -> R.Callable((R.Tensor((4, 4), "float32"),), R.Tensor((4, 4), "float32")):
            twice = R.add(c, c)

            @R.function
            def add(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                s = R.add(x, twice)
                return s

            return add

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            add_x = cls.adder(x)
            add_y = cls.adder(y)
            a = add_x(y)
            b = add_y(a)
            return b

    check(Module, Y + 2 * X + 2 * Y, X, Y)


def test_a_closure_calls_itself() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            @R.function
            def loop(i: R.Tensor((), "int32"), s: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                again = R.less(i, R.const(5))
                if again:
                    r = loop(R.add(i, R.const(1)), R.add(s, x))
                else:
                    r = s
                return r

            y = loop(R.const(0), x)
            return y

    check(Module, 6 * X, X)


def test_functions_are_passed_to_functions_and_kept_in_tuples() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def twice(
            f: R.Callable((R.Tensor((4, 4), "float32"),), R.Tensor((4, 4), "float32")), x: R.Tensor((4, 4), "float32")
        ) -> R.Tensor((4, 4), "float32"):
            a = f(x)
            b = f(a)
            return b

        @R.function(private=True)
        def double(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.add(x, x)
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module

            @R.function
            def add_y(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                b = R.add(a, y)
                return b

            @R.function
            def outer(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                b = cls.twice(add_y, a)
                return b

            t = (outer, (cls.double, x))
            f = t[0]
            u = t[1]
            g = u[0]
            a = cls.twice(g, u[1])
            b = f(a)
            return b

    check(Module, 4 * X + 2 * Y, X, Y)


@pytest.mark.parametrize("flag", [True, False])
def test_a_function_is_chosen_at_run_time(flag: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((4, 4), "float32"):
            @R.function
            def add_x(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                b = R.add(a, x)
                return b

            @R.function
            def double(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                b = R.add(a, R.add(a, a))
                return b

            if flag:
                f = add_x
            else:
                f = double
            y = f(R.add(x, x))
            return y

    check(Module, 3 * X if flag else 6 * X, X, np.array(flag))


def test_what_lambda_lift_made_is_called_directly() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            @R.function
            def outer(
                c: R.Tensor((4, 4), "float32"),
            ) -> R.Callable((R.Tensor((4, 4), "float32"),), R.Tensor((4, 4), "float32")):
                @R.function
                def inner(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                    s = R.subtract(a, c)
                    return s

                return inner

            f = outer(x)
            r = f(y)
            return r

    lifted = relax.transform.LambdaLift()(Module)
    assert "closure" in lifted.script()
    assert "closure" not in first_order(lifted).script()
    check(Module, Y - X, X, Y)
    check(lifted, Y - X, X, Y)


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


def test_a_recursive_function_that_takes_a_function_is_an_error_that_says_so() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def loop(
            f: R.Callable((R.Tensor((4, 4), "float32"),), R.Tensor((4, 4), "float32")), x: R.Tensor((4, 4), "float32")
        ) -> R.Tensor((4, 4), "float32"):
            cls = Module
            again = R.less(R.max(x), R.const(10.0))
            if again:
                r = cls.loop(f, f(x))
            else:
                r = x
            return r

        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module

            @R.function
            def add_x(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                b = R.add(a, x)
                return b

            y = cls.loop(add_x, x)
            return y

    for way in (vm.compile, from_relax):
        with pytest.raises(
            UnsupportedError, match=r"@loop calls itself, and takes or returns a function.*Pass tensors"
        ):
            way(Module)


def test_a_function_that_returns_nothing_is_called() -> None:
    @I.ir_module
    class Module:
        @R.function(pure=False, private=True)
        def check_size(x: R.Tensor((4, 4), "float32")) -> R.Tuple:
            R.assert_op(R.less(R.max(x), R.const(1e9)), format="large")
            return R.tuple()

        @R.function(pure=False)
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            cls.check_size(x)
            y = R.add(x, x)
            return y

    check(Module, 2 * X, X)
    with pytest.raises(AssertionError, match="large"):
        vm.compile(from_relax(Module))(1e10 * np.ones_like(X))


# -- groups ------------------------------------------------------------------------------------------


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
