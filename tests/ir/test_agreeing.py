"""Whether a value can have the type that is declared of it."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.ir import PrimType, TupleType
from tvm.relax import AnyType, ShapeType, TensorType

from autocast.ir.agreeing import disagree, never_equal, not_always_equal

n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
_TENSOR = TensorType([n, 4], "float32")

#: Two types, and whether a value of the second is none of the first.
_PAIRS = {
    "the same": (_TENSOR, TensorType([n, 4], "float32"), False),
    "another dtype": (_TENSOR, TensorType([n, 4], "float16"), True),
    "another rank": (_TENSOR, TensorType([n], "float32"), True),
    "another number": (_TENSOR, TensorType([n, 5], "float32"), True),
    "another formula": (_TENSOR, TensorType([n + 1, 4], "float32"), True),
    "a size that may be equal": (_TENSOR, TensorType([m, 4], "float32"), False),
    "no sizes": (_TENSOR, TensorType(ndim=2, dtype="float32"), False),
    "no sizes, another rank": (_TENSOR, TensorType(ndim=3, dtype="float32"), True),
    "no dtype": (_TENSOR, TensorType(ndim=2), False),
    "nothing": (_TENSOR, TensorType(), False),
    "anything": (_TENSOR, AnyType(), False),
    "a shape": (_TENSOR, ShapeType([n, 4]), True),
    "shapes": (ShapeType([n, 4]), ShapeType([n, 5]), True),
    "a shape of unknown sizes": (ShapeType([n, 4]), ShapeType(ndim=2), False),
    "a shape of another rank": (ShapeType([n, 4]), ShapeType(ndim=3), True),
    "numbers": (PrimType("int64"), PrimType("float32"), True),
    "a tuple of one": (_TENSOR, TupleType([_TENSOR]), True),
    "a tuple of another length": (TupleType([_TENSOR]), TupleType([_TENSOR, _TENSOR]), True),
    "a field": (TupleType([TupleType([_TENSOR])]), TupleType([TupleType([TensorType([n, 4], "int64")])]), True),
    "a field that may be anything": (TupleType([_TENSOR]), TupleType([AnyType()]), False),
}


@pytest.mark.parametrize("pair", list(_PAIRS))
def test_types_disagree_where_no_value_has_both(pair: str) -> None:
    one, other, expected = _PAIRS[pair]
    assert disagree(one, other, never_equal) == expected
    assert disagree(other, one, never_equal) == expected


def test_sizes_that_are_not_always_equal_differ_where_names_are_known() -> None:
    named = TensorType([m, 4], "float32")
    assert not disagree(_TENSOR, named, not_always_equal({m: n}, {}))
    assert disagree(_TENSOR, named, not_always_equal({m: m, n: n}, {}))
    assert not disagree(_TENSOR, named, not_always_equal({n: n}, {}))  # whatever m is


def test_a_size_below_0_is_that_of_an_empty_slice() -> None:
    said = TensorType([tvm.tirx.min(n, 100) - tvm.tirx.max(n - 5, 0)])
    mended = TensorType([tvm.tirx.max(tvm.tirx.min(n, 100) - tvm.tirx.max(n - 5, 0), 0)])
    wrong = TensorType([tvm.tirx.max(tvm.tirx.min(n, 100) - tvm.tirx.max(n - 5, 0), 0) + 1])
    assert not disagree(said, mended, not_always_equal({n: n}, {}))
    assert disagree(said, wrong, not_always_equal({n: n}, {}))


def test_functions_are_not_compared() -> None:
    assert not disagree(relax.FuncType([], _TENSOR), relax.FuncType([], AnyType()), never_equal)
