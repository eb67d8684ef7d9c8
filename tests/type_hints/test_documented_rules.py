"""Rules like the two of RAF's page on mixed precision: a bias that follows its data, and one that is never cast."""

from __future__ import annotations

import pytest
from tvm import relax

from type_hints import Argument, CustomTypeHint, PrimType, check_dtype, derived_name, gen_hint_helper, get_rule


def cast_bias_add(args, ret_type, amp_dtype):
    data, bias, _ = args
    wanted = amp_dtype if check_dtype(data.checked_type, amp_dtype) else "float32"
    return [gen_hint_helper(data.checked_type, wanted), gen_hint_helper(bias.checked_type, wanted), PrimType(None)]


def never_cast_bias_add(args, ret_type, amp_dtype):
    return [PrimType("float32")] * 2 + [PrimType(None)]


def bias_add(data_dtype: str, bias_dtype: str = "float32") -> list[Argument]:
    data = relax.Var("data", relax.TensorType([4, 6], data_dtype))
    bias = relax.Var("bias", relax.TensorType([6], bias_dtype))
    return [Argument(data, data.ty), Argument(bias, bias.ty), Argument(None, None)]


@pytest.mark.parametrize("amp_dtype", ["bfloat16", "float16"])
def test_cast_bias_add_follows_its_data(amp_dtype):
    low, full, none = PrimType(amp_dtype), PrimType("float32"), PrimType(None)
    assert cast_bias_add(bias_add(amp_dtype), None, amp_dtype) == [low, low, none]
    assert cast_bias_add(bias_add("float32"), None, amp_dtype) == [full, full, none]


@pytest.mark.parametrize("data_dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("bias_dtype", ["float32", "bfloat16"])
def test_the_registered_rule_of_bias_add_is_cast_bias_add(data_dtype, bias_dtype):
    args = bias_add(data_dtype, bias_dtype)
    if data_dtype != "int64":
        assert get_rule("bias_add")(args, None, "bfloat16") == cast_bias_add(args, None, "bfloat16")
    else:
        assert get_rule("bias_add")(args, None, "bfloat16")[0] == PrimType(None)


def test_never_cast_bias_add_takes_effect_inside_its_block():
    call = relax.op.add(*(argument.expr for argument in bias_add("float32")[:2]))
    with CustomTypeHint({"raf.op.bias_add": never_cast_bias_add}):
        derived = derived_name(call)
        hints = get_rule(derived.name)(bias_add("bfloat16"), None, "bfloat16")
        assert derived.real_hints(hints) == [PrimType("float32"), PrimType("float32")]
    assert get_rule("relax.bias_add") is not never_cast_bias_add
