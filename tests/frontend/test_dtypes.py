"""Complete type information: dtypes of inputs and parameters, and all that follows from them."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.errors import ImportModelError
from autocast.frontend import with_dtypes


@I.ir_module
class Untyped:
    @R.function
    def main(a: R.Tensor((4, 4)), b: R.Tensor((4, 4)), i: R.Tensor((2,), "int64")):
        with R.dataflow():
            c = R.add(a, b)
            d = R.concat((c, b))
            e = R.take(d, i, axis=0)
            R.output(e)
        return e


def test_only_what_is_narrower_is_cast_to_the_widest_dtype():
    @I.ir_module
    class Expected:
        @R.function
        def main(a: R.Tensor((4, 4), "float32"), b: R.Tensor((4, 4), "float16"), i: R.Tensor((2,), "int64")):
            with R.dataflow():
                b1 = R.astype(b, "float32")
                c = R.add(a, b1)
                b2 = R.astype(b, "float32")
                d = R.concat((c, b2))
                e = R.take(d, i, axis=0)
                R.output(e)
            return e

    tvm.ir.assert_structural_equal(with_dtypes(Untyped, {"a": "float32", "b": "float16"}), Expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_where_all_agree_nothing_is_cast(dtype):
    typed = with_dtypes(Untyped, {"a": dtype, "b": dtype, "i": "int64"})
    assert "astype" not in typed.script()
    assert str(typed["main"].ret_ty.dtype) == dtype


def test_a_module_that_is_complete_comes_back_as_it_is():
    typed = with_dtypes(Untyped, {"a": "float32", "b": "float32"})
    assert with_dtypes(typed, {"a": "float32"}) is typed


def test_a_size_that_a_condition_chooses_stays():
    @I.ir_module
    class Slice:
        @R.function
        def main(x: R.Tensor(("n", "k"))):
            n = T.int64()
            k = T.int64()
            return R.strided_slice(x, axes=[0], begin=[k - 4], end=[n])

    typed = with_dtypes(Slice, {"x": "float32"})
    assert "if_then_else" in str(typed["main"].ret_ty)


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"a": "float32"}, "no dtype is given for b"),
        ({"a": "float32", "b": "float32", "i": "int32"}, "i is int64 and not int32"),
        ({"a": "float32", "b": "float32", "z": "float32"}, r"main has no parameters \['z'\]; it has \['a', 'b', 'i'\]"),
    ],
)
def test_what_is_missing_unknown_or_wrong_is_named(dtypes, message):
    with pytest.raises(ImportModelError, match=message):
        with_dtypes(Untyped, dtypes)
