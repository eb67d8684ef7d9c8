"""The two rules that RAF's page on mixed precision prints run as they stand."""

from __future__ import annotations

import pytest
from tvm import relax

from type_hints import Argument, CustomTypeHint, PrimType, check_dtype, derived_name, gen_hint_helper, get_rule


def cast_bias_add(args, ret_type, amp_dtype):
    # Follow the input data type
    target_dtype = amp_dtype if check_dtype(args[0].checked_type, amp_dtype) else "float32"

    # Generate type hint for each input argument.
    return [gen_hint_helper(args[0].checked_type, target_dtype), # input
            gen_hint_helper(args[0].checked_type, target_dtype), # bias
            PrimType(None) # axis, not floating data type so don't touch
           ]  # fmt: skip


def never_cast_bias_add(args, ret_type, amp_dtype):
    """Custom bias add casting rule."""
    return [PrimType("float32"), PrimType("float32"), PrimType(None)]


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
