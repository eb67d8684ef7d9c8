"""Nested functions and closures compute what their text says."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp, from_relax, vm
from autocast.errors import UnsupportedError
from autocast.ir import first_order
from tests.ir.ways import W, X, Y, check


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


def test_main_calls_itself_with_the_parameters_of_a_model() -> None:
    @I.ir_module
    class Power:
        @R.function
        def main(n: R.Tensor((), "int32"), x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
            (4, 4), "float32"
        ):
            cls = Power
            twice = R.add(w, w)
            more = R.greater(n, R.const(0, "int32"))
            if more:
                y = cls.main(R.subtract(n, R.const(1, "int32")), R.matmul(x, twice), twice)
            else:
                y = x
            return y

    for prepare in (lambda model: model, amp.autocast):
        model = prepare(from_relax(Power, {"w": W}))
        np.testing.assert_array_equal(model(np.array(2, "int32"), X), X @ (2 * W) @ (4 * W))
