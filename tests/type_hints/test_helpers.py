"""Hints, and the helpers that rules are written with."""

from __future__ import annotations

import copy
import pickle

import pytest
import tvm
from tvm import relax

import type_hints
from type_hints import (
    Argument,
    CastingRuleError,
    PrimType,
    TupleType,
    check_dtype,
    follow,
    full,
    gen_hint_helper,
    generic_cast,
    infer_cast,
    low,
    opaque,
    untouched,
)

FLOAT32 = relax.TensorType([2, 3], "float32")
BFLOAT16 = relax.TensorType([2, 3], "bfloat16")
FLOAT16 = relax.TensorType([2, 3], "float16")
FLOAT64 = relax.TensorType([2, 3], "float64")
INT64 = relax.TensorType([2, 3], "int64")
UNKNOWN = relax.TensorType(ndim=2, dtype=None)
SHAPE = relax.ShapeType(ndim=2)
NUMBER = tvm.ir.PrimType("int64")


def arguments(*types):
    return [Argument(None, type) for type in types]


def prims(*dtypes):
    return [PrimType(dtype) for dtype in dtypes]


def test_prim_types_are_values():
    assert PrimType("float32") == PrimType("float32") != PrimType(None)
    assert PrimType(None) == PrimType(None) and PrimType(None).dtype is None
    assert len({PrimType("float32"), PrimType("float32"), PrimType(None)}) == 2
    assert PrimType("float32") != "float32"
    assert [repr(hint) for hint in prims("bfloat16", None)] == ['PrimType("bfloat16")', "PrimType(None)"]


def test_tvm_dtypes_make_the_same_prim_type_as_their_names():
    assert PrimType(FLOAT16.dtype) == PrimType(FLOAT16.dtype.dtype) == PrimType("float16")
    assert type(PrimType(FLOAT16.dtype).dtype) is str


@pytest.mark.parametrize("dtype", [32, "", ["float32"]])
def test_a_prim_type_of_something_else_is_refused(dtype):
    with pytest.raises(CastingRuleError, match="expected a dtype name"):
        PrimType(dtype)


def test_tuple_types_nest_and_are_values():
    hint = TupleType([PrimType("float32"), TupleType([PrimType(None)])])
    assert hint == TupleType((PrimType("float32"), TupleType([PrimType(None)])))
    assert hash(hint) == hash(TupleType(hint.fields))
    assert repr(hint) == 'TupleType([PrimType("float32"), TupleType([PrimType(None)])])'
    with pytest.raises(CastingRuleError, match="field 1 is 'float32'"):
        TupleType([PrimType(None), "float32"])


def test_hints_are_immutable_and_copy_and_pickle():
    hint = TupleType([PrimType("float32"), PrimType(None)])
    with pytest.raises(AttributeError, match="immutable"):
        hint.fields = ()
    with pytest.raises(AttributeError, match="immutable"):
        hint.fields[0].dtype = "float16"
    assert copy.deepcopy(hint) == hint == pickle.loads(pickle.dumps(hint))


def test_an_argument_spells_its_type_both_ways():
    assert Argument(None, FLOAT32).ty is Argument(None, FLOAT32).checked_type is FLOAT32


@pytest.mark.parametrize("type", [FLOAT32, BFLOAT16, FLOAT16], ids=str)
def test_a_castable_tensor_gets_the_dtype_asked_for(type):
    assert gen_hint_helper(type, "bfloat16") == PrimType("bfloat16")
    assert gen_hint_helper(type, "float32") == PrimType("float32")
    assert gen_hint_helper(type, None) == PrimType(None)


@pytest.mark.parametrize("type", [FLOAT64, INT64, UNKNOWN, SHAPE, NUMBER, None], ids=str)
def test_everything_else_is_not_to_be_touched(type):
    assert gen_hint_helper(type, "float32") == PrimType(None)


def test_tuples_get_nested_hints():
    type = tvm.ir.TupleType([FLOAT32, tvm.ir.TupleType([INT64, BFLOAT16])])
    assert gen_hint_helper(type, "float32") == TupleType(
        [PrimType("float32"), TupleType([PrimType(None), PrimType("float32")])]
    )


def test_check_dtype_looks_into_tuples():
    assert check_dtype(FLOAT32, "float32") and not check_dtype(FLOAT32, "bfloat16")
    assert check_dtype(INT64, "int64")
    assert check_dtype(tvm.ir.TupleType([BFLOAT16, BFLOAT16]), "bfloat16")
    assert not check_dtype(tvm.ir.TupleType([BFLOAT16, FLOAT32]), "bfloat16")
    assert not check_dtype(tvm.ir.TupleType([]), "bfloat16")
    assert not check_dtype(SHAPE, "int64") and not check_dtype(UNKNOWN, "float32")


@pytest.mark.parametrize("which", [2, (0, 1), [1, 0], range(2)], ids=str)
def test_which_is_a_count_or_indices(which):
    args = arguments(FLOAT32, BFLOAT16, FLOAT32, SHAPE)
    assert generic_cast(True, which)(args, FLOAT32, "bfloat16") == prims("bfloat16", "bfloat16", None, None)
    assert generic_cast(False, which)(args, FLOAT32, "bfloat16") == prims("float32", "float32", None, None)


def test_indices_may_leave_gaps():
    args = arguments(FLOAT32, INT64, FLOAT32)
    assert full((0, 2))(args, FLOAT32, "float16") == prims("float32", None, "float32")


@pytest.mark.parametrize("rule", [low(3), full(3), follow(3), untouched(), opaque()], ids=repr)
@pytest.mark.parametrize("count", range(5))
def test_a_rule_gives_one_hint_for_each_argument_the_call_really_has(rule, count):
    assert len(rule(arguments(*[FLOAT32] * count), FLOAT32, "bfloat16")) == count


@pytest.mark.parametrize("rule", [low(2), low(2, result="either"), full(2), follow(2)], ids=repr)
def test_integers_are_never_touched(rule):
    assert rule(arguments(INT64, INT64), INT64, "bfloat16") == prims(None, None)


@pytest.mark.parametrize("which", [0, -1, (-1,), ("x",), (0.5,)], ids=str)
def test_impossible_indices_are_refused(which):
    with pytest.raises(CastingRuleError, match="how many leading arguments"):
        full(which)


@pytest.mark.parametrize("amp_dtype", ["bfloat16", "float16"])
def test_an_inferring_rule_is_stable_in_both_precisions(amp_dtype):
    rule, low_type = infer_cast(2), relax.TensorType([2, 3], amp_dtype)
    assert rule(arguments(low_type, low_type, SHAPE), None, amp_dtype) == prims(amp_dtype, amp_dtype, None)
    assert rule(arguments(FLOAT32, FLOAT32, SHAPE), None, amp_dtype) == prims("float32", "float32", None)


def test_an_inferring_rule_follows_the_majority_and_ties_are_float32():
    rule = infer_cast(3)
    assert rule(arguments(BFLOAT16, FLOAT32, BFLOAT16), None, "bfloat16") == prims(*["bfloat16"] * 3)
    assert rule(arguments(BFLOAT16, FLOAT32, INT64), None, "bfloat16") == prims("float32", "float32", None)


def test_an_inferring_rule_counts_the_fields_of_tuples():
    fields = tvm.ir.TupleType([BFLOAT16, FLOAT32, BFLOAT16])
    assert follow(1)(arguments(fields), None, "bfloat16") == [TupleType(prims(*["bfloat16"] * 3))]


def test_an_inferring_rule_leaves_fields_in_other_16_bits_as_they_are():
    fields = tvm.ir.TupleType([BFLOAT16, FLOAT32, BFLOAT16])
    assert follow(1)(arguments(fields), None, "float16") == [TupleType(prims(None, "float32", None))]


def test_a_leader_decides_alone():
    rule = follow(3, leader=0)
    assert rule(arguments(BFLOAT16, FLOAT32, FLOAT32), None, "bfloat16") == prims(*["bfloat16"] * 3)
    assert rule(arguments(FLOAT32, BFLOAT16, BFLOAT16), None, "bfloat16") == prims(*["float32"] * 3)
    with pytest.raises(CastingRuleError, match="leader"):
        follow(2, leader=2)


def test_a_free_result_echoes_what_is_wanted():
    rule = low(2, result="either")
    args = arguments(FLOAT32, FLOAT32)
    assert rule(args, FLOAT32, "bfloat16") == prims("bfloat16", "bfloat16", "float32")
    assert rule(args, BFLOAT16, "bfloat16") == prims("bfloat16", "bfloat16", "bfloat16")
    assert rule(args, FLOAT64, "bfloat16") == prims("bfloat16", "bfloat16")


def test_kept_arguments_are_float32_beside_low_ones():
    rule = low(2, keep=(2,))
    assert rule(arguments(*[BFLOAT16] * 3), BFLOAT16, "bfloat16") == prims("bfloat16", "bfloat16", "float32")


def test_table_entries_print_as_they_are_written():
    assert [repr(rule) for rule in (low(2), full((0, 2)), follow(1), opaque())] == [
        "low(2)",
        "full((0, 2))",
        "follow(1)",
        "opaque()",
    ]


def test_division_by_a_literal_follows_and_by_a_tensor_does_not():
    rule = type_hints.get_rule("relax.divide")
    by_literal = [Argument(None, BFLOAT16), Argument(relax.const(8.0, "float32"), BFLOAT16)]
    assert rule(by_literal, BFLOAT16, "bfloat16") == prims("bfloat16", "bfloat16")
    by_tensor = [Argument(None, BFLOAT16), Argument(relax.Var("x", BFLOAT16), BFLOAT16)]
    assert rule(by_tensor, BFLOAT16, "bfloat16") == prims("float32", "float32")


def test_a_rule_that_looks_at_expressions_is_not_a_table_rule_whose_answer_serves_other_calls():
    assert not isinstance(type_hints.get_rule("relax.divide"), type_hints.TableRule)
    assert isinstance(type_hints.get_rule("relax.multiply"), type_hints.TableRule)
