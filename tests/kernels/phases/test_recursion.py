"""Functions that never return are refused; those that may are not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import from_relax, vm
from autocast.errors import UnsupportedError


@I.ir_module
class Mutual:
    @R.function(private=True)
    def even(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        y = Mutual.odd(x)
        return y

    @R.function(private=True)
    def odd(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        y = Mutual.even(R.exp(x))
        return y

    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        y = Mutual.even(x)
        return y


@I.ir_module
class Local:
    @R.function
    def main(x: R.Tensor((), "int32")) -> R.Tensor((), "int32"):
        @R.function
        def again(y: R.Tensor((), "int32")) -> R.Tensor((), "int32"):
            z = again(R.add(y, y))
            return z

        w = again(x)
        return w


@I.ir_module
class Halves:
    @R.function(private=True)
    def halved(x: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        if R.greater(x, R.const(1, "int64")):
            half = Halves.halved(R.floor_divide(x, R.const(2, "int64")))
            y = R.add(half, R.const(1, "int64"))
        else:
            y = R.const(0, "int64")
        return y

    @R.function
    def main(x: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        y = Halves.halved(x)
        return y


@pytest.mark.parametrize(
    ("mod", "said"), [(Mutual, "@even calls @odd, which calls @even, on every path"), (Local, "calls @.*again")]
)
def test_a_function_that_calls_itself_on_every_path_is_refused(mod: tvm.IRModule, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        vm.compile(from_relax(mod))


def test_one_that_ends_is_run() -> None:
    assert vm.compile(from_relax(Halves))(np.array(1000)) == 9
