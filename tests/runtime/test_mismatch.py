"""Sizes that only running tells, and that are not what a module declares, are errors that say where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax, vm
from autocast.errors import InputError
from autocast.runtime.mismatch import mismatch


@I.ir_module
class Distinct:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        u = R.unique(x)
        v = R.match_cast(u, R.Tensor((4,), "float32"))
        w = R.add(v, v)
        return w


@I.ir_module
class Twice:
    @R.function
    def main(sizes: R.Tensor((2,), "int64")):
        k = T.int64()
        square = R.match_cast(R.tensor_to_shape(sizes), R.Shape([k, k]))
        y = R.zeros(square, "float32")
        return y


@I.ir_module
class Axes:
    @R.function
    def main(sizes: R.Tensor(("k",), "int64")):
        b = T.int64()
        c = T.int64()
        shape = R.match_cast(R.tensor_to_shape(sizes), R.Shape([b, c]))
        y = R.zeros(shape, "float32")
        return y


@I.ir_module
class Square:
    @R.function
    def twice(x: R.Tensor(("n", "n"), "float32")):
        y = R.add(x, x)
        return y

    @R.function
    def main(x: R.Tensor(("a", "b"), "float32")):
        cls = Square
        y = cls.twice(x)
        return y


@I.ir_module
class OfAKernel:
    @T.prim_func(private=True, s_tir=True)
    def next(x: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")):
        for i in range(4):
            z[i] = x[i] + T.float32(1)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        y = R.call_tir(OfAKernel.next, (x,), out_ty=R.Tensor((4,), "float32"))
        return y


@I.ir_module
class Given:
    @R.function
    def main(sizes: R.Tensor((2,), "int64")):
        b = T.int64()
        c = T.int64()
        shape = R.match_cast(R.tensor_to_shape(sizes), R.Shape([b, c]))
        y = R.reshape(R.arange(R.prim_value(0), R.prim_value(6), R.prim_value(1), dtype="float32"), shape)
        return y


@pytest.mark.parametrize("way", [lambda mod: mod, from_relax], ids=["as it is", "as a model"])
@pytest.mark.parametrize(
    ("mod", "right", "wrong", "message"),
    [
        (
            Distinct,
            np.arange(4, dtype="float32"),
            np.ones(4, "float32"),
            r"%v in @main, which the module declares to be R.Tensor\(\(4,\).*, has size 1 along axis 0, exp.* 4\.",
        ),
        (Twice, np.array([2, 2]), np.array([2, 3]), r"%square in @main, .* R.Shape\(\[k, k\]\), has size 3 along"),
        (Axes, np.array([2, 3]), np.array([2, 3, 4]), r"%shape in @main, .*: expect Shape with ndim 2 but get 3\."),
        (
            Square,
            np.ones((2, 2), "float32"),
            np.ones((2, 3), "float32"),
            r"twice: the argument x, declared as R.Tensor\(\(n, n\).*, has size 3 along axis 1, expected 2",
        ),
        (
            OfAKernel,
            np.ones(4, "float32"),
            np.ones(3, "float32"),
            r"calls its kernel next\(x: Tensor\(\[4\].* \(Invalid x\.shape\[0\], expected 4\)",
        ),
        (Given, np.array([2, 3]), np.array([-2, -3]), r"%y\d? in @main needs 0 to be at most [bc]; it is [23] more"),
        (Axes, np.array([0, 3]), np.array([-1, 3]), "main: there is no memory for a tensor .* it may be below 0"),
    ],
)
def test_it_says_where_what_and_what_else(
    way: Callable, mod: tvm.IRModule, right: np.ndarray, wrong: np.ndarray, message: str
) -> None:
    executable = vm.compile(way(mod))
    executable(right)
    with pytest.raises(InputError, match=message) as error:
        executable(wrong)
    assert error.value.__cause__ is not None
    executable(right)


def test_what_is_about_something_else_stays_what_it_is() -> None:
    assert mismatch(AssertionError("large"), Distinct) is None
