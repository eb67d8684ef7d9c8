"""Derived operators: an add of a bias is `bias_add` to its user."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tests.type_hints.samples import tensor
from type_hints import CastingRuleError, CustomTypeHint, PrimType, derived_name, follow, full


@pytest.mark.parametrize("data", [(4, 6), (2, 4, 6), (6, 6)], ids=str)
def test_an_add_of_a_vector_is_a_bias_add_in_either_order(data):
    data, bias = tensor(*data), tensor(6)
    straight, swapped = derived_name(relax.op.add(data, bias)), derived_name(relax.op.add(bias, data))
    assert straight.name == swapped.name == "relax.bias_add"
    for derived in (straight, swapped):
        assert derived.arguments[0].same_as(data) and derived.arguments[1].same_as(bias)
        assert derived.arguments[2] is None
    assert (straight.positions, swapped.positions) == ((0, 1), (1, 0))


CHANNELS = [
    ((2, 6, 5), (1, 6, 1)),
    ((2, 6, 5, 5), (1, 6, 1, 1)),
    ((1, 6, 5, 5), (6, 1, 1)),
    ((2, 1, 5, 5), (1, 1, 1, 1)),
]


@pytest.mark.parametrize(("data", "bias"), CHANNELS, ids=str)
def test_an_add_along_the_channels_of_a_convolution_is_a_bias_add_in_either_order(data, bias):
    data, bias = tensor(*data), tensor(*bias)
    straight, swapped = derived_name(relax.op.add(data, bias)), derived_name(relax.op.add(bias, data))
    for derived in (straight, swapped):
        assert derived.name == "relax.bias_add"
        assert derived.arguments[0].same_as(data) and derived.arguments[1].same_as(bias)
    assert (straight.positions, swapped.positions) == ((0, 1), (1, 0))


def test_hints_come_back_in_the_order_of_the_real_call():
    data, bias, axis = PrimType("bfloat16"), PrimType("float32"), PrimType(None)
    straight = derived_name(relax.op.add(tensor(4, 6), tensor(6)))
    swapped = derived_name(relax.op.add(tensor(6), tensor(4, 6)))
    assert straight.real_hints([data, bias, axis]) == [data, bias]
    assert swapped.real_hints([data, bias, axis]) == [bias, data]


def test_a_hint_for_the_result_is_kept():
    swapped = derived_name(relax.op.add(tensor(6), tensor(4, 6)))
    hints = [PrimType("bfloat16"), PrimType("float32"), PrimType(None), PrimType("float16")]
    assert swapped.real_hints(hints) == [PrimType("float32"), PrimType("bfloat16"), PrimType("float16")]


@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_wrong_number_of_hints_is_an_error(count):
    derived = derived_name(relax.op.add(tensor(4, 6), tensor(6)))
    with pytest.raises(CastingRuleError, match=f"relax.bias_add gave {count} hints, expected 3"):
        derived.real_hints([PrimType(None)] * count)


def test_symbolic_lengths_and_unknown_shapes_are_biases():
    length = tvm.tirx.Var("n", "int64")
    assert derived_name(relax.op.add(tensor(4, length), tensor(length))) is not None
    unknown = relax.Var("x", relax.TensorType(ndim=3, dtype="float32"))
    assert derived_name(relax.op.add(unknown, tensor(6))) is not None


@pytest.mark.parametrize(
    "call",
    [
        relax.op.add(tensor(4, 6), tensor(4, 6)),
        relax.op.add(tensor(6), tensor(6)),
        relax.op.add(tensor(4, 6), tensor()),
        relax.op.add(tensor(4, 6), tensor(1)),
        relax.op.add(tensor(4, 1), tensor(6)),
        relax.op.add(tensor(4, tvm.tirx.Var("n", "int64")), tensor(1)),
        relax.op.add(tensor(4, 6, dtype="int64"), tensor(6, dtype="int64")),
        relax.op.add(tensor(2, 6, 5, 5), tensor(1, 1, 1, 5)),
        relax.op.add(tensor(2, 6, 5, 5), tensor(2, 6, 1, 1)),
        relax.op.add(tensor(2, 6, 5, 5), tensor(1, 1, 1, 1)),
        relax.op.add(tensor(1, 6, 1, 1), tensor(1, 6, 1, 1)),
        relax.op.add(tensor(6, 5), tensor(1, 5)),
        relax.op.subtract(tensor(4, 6), tensor(6)),
        relax.op.matmul(tensor(4, 6), tensor(6)),
        relax.Call(relax.ExternFunc("foreign"), [tensor(4, 6), tensor(6)]),
    ],
    ids=repr,
)
def test_other_calls_are_themselves(call):
    assert derived_name(call) is None


def test_an_override_of_add_concerns_adds_of_biases_too_unless_they_have_their_own():
    call = relax.op.add(tensor(4, 6), tensor(6))
    with CustomTypeHint({"relax.add": full(2)}):
        assert derived_name(call) is None
        with CustomTypeHint({"bias_add": follow(2)}):
            assert derived_name(call).name == "relax.bias_add"
    assert derived_name(call).name == "relax.bias_add"
