"""Fields of fields, of tuples that are not written out."""

from __future__ import annotations

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm

_X = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)


def test_fields_of_what_a_function_returns() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def nested(
            x: R.Tensor((2, 4), "float32"),
        ) -> R.Tuple(
            R.Tensor((2, 4), "float32"), R.Tuple(R.Tensor((2, 4), "float32"), R.Tuple(R.Tensor((2, 4), "float32")))
        ):
            y = R.exp(x)
            return (x, (y, (x,)))

        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            cls = Module
            t = cls.nested(x)
            return (t[1][0], t[1][1][0])

    first, second = vm.compile(Module)(_X)
    np.testing.assert_allclose(first, np.exp(_X), rtol=1e-6)
    np.testing.assert_array_equal(second, _X)


def test_fields_of_fields_in_a_branch() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((2,), "float32"):
            t = (R.exp(x), (R.max(x, axis=1), x))
            if flag:
                y = t[1][0]
            else:
                y = R.min(x, axis=1)
            return y

    executable = vm.compile(Module)
    np.testing.assert_array_equal(executable(_X, np.array(True)), _X.max(1))
    np.testing.assert_array_equal(executable(_X, np.array(False)), _X.min(1))


@I.ir_module
class Sliced:
    @R.function
    def main(x: R.Tensor((2, 4), "float32")):
        both = R.median(x, axis=[0], keepdims=False)
        middle = both[0]
        first = R.match_cast(
            R.dynamic_strided_slice(middle, R.const([0], "int64"), R.const([1], "int64"), R.const([1], "int64")),
            R.Tensor((1,), "float32"),
        )
        return first


def test_a_field_that_a_matched_call_reads_is_not_taken_for_a_kernels_own() -> None:
    x = np.arange(8, dtype="float32").reshape(2, 4)
    assert vm.compile(Sliced)(x).tolist() == [0.0]
