"""Errors say where, what AutoCast got, what it expected and what to try; the module is not changed by them."""

from __future__ import annotations

import re

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp
from autocast.errors import AutocastError, CastingRuleError, IllFormedModuleError
from type_hints import PrimType, TupleType, follow, low, registry


@I.ir_module
class Module:
    @R.function
    def layer(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), i: R.Tensor((4,), "int64")) -> R.Tensor((4, 4), "float32"):
        a = R.matmul(x, x)
        b = R.exp(a)
        c = R.take(b, i, axis=0)
        d = R.concat((b, c), axis=0)
        e = R.split(d, 2, axis=0)
        f = e[0]
        g = R.exp(f)
        return g


def fails(*parts: str, rules: dict | None = None, error: type = CastingRuleError, mod=Module, **options) -> str:
    """The message of the error that AutoCast raises; each of `parts` is in it, and the module is what it was."""
    text, hashed = mod.script(), tvm_ffi.structural_hash(mod)
    with amp.CustomTypeHint(rules or {}), pytest.raises(error) as caught:
        amp.autocast(mod, **options)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert (mod.script(), tvm_ffi.structural_hash(mod)) == (text, hashed)
    return message


def answers(*hints):
    """A rule that always answers the same."""

    def some_rule(args, ret_type, amp_dtype):
        return list(hints)

    return some_rule


LOW, FULL, NONE = PrimType("bfloat16"), PrimType("float32"), PrimType(None)


def test_operators_without_a_rule_are_listed_all_at_once_with_their_counts(monkeypatch):
    monkeypatch.delitem(registry._rows, "relax.exp")
    monkeypatch.delitem(registry._rows, "relax.split")
    message = fails("AutoCast: 2 operators have no casting rule")
    assert re.search(r"relax\.exp: 3 calls in @layer, @main", message)
    assert re.search(r"relax\.split: 1 call in @main", message)
    assert 'type_hints.register_op_cast_rule("relax.exp", type_hints.follow(1), why="...")' in message


def test_one_operator_without_a_rule_is_spoken_of_in_the_singular(monkeypatch):
    monkeypatch.delitem(registry._rows, "relax.split")
    fails("AutoCast: 1 operator has no casting rule")


def test_too_few_hints():
    fails("some_rule", "%a = relax.matmul(", "in @main", "0 hints", "expected 2", rules={"matmul": answers()})


def test_too_many_hints():
    fails("4 hints", "expected 2", "one more for the result", rules={"matmul": answers(LOW, LOW, LOW, LOW)})


def test_a_tuple_of_hints_for_a_tensor():
    rule = answers(TupleType([LOW]), LOW)
    fails("argument 0", "TupleType([PrimType", 'expected PrimType(None) or PrimType("float32")', rules={"matmul": rule})


def test_one_hint_for_a_tuple():
    fails("argument 0 of", "expected a TupleType of 2 hints", rules={"concat": answers(LOW)})


def test_too_few_hints_for_the_fields_of_a_tuple():
    fails("argument 0 of", "expected a TupleType of 2 hints", rules={"concat": answers(TupleType([LOW]))})


def test_a_dtype_that_is_neither_float32_nor_the_amp_dtype():
    rule = answers(PrimType("int8"), LOW)
    fails('PrimType("int8")', "argument 0", 'PrimType("bfloat16")', rules={"matmul": rule})


def test_the_other_low_precision_is_not_the_amp_dtype():
    rule = answers(PrimType("float16"), LOW)
    fails('PrimType("float16")', "argument 0", 'PrimType("bfloat16")', rules={"matmul": rule})


def test_a_hint_for_an_integer_argument():
    fails("argument 1", "not a floating-point tensor", "PrimType(None)", rules={"take": answers(LOW, LOW)})


def test_something_that_is_no_hint():
    fails("'bfloat16'", "argument 0", "expected", rules={"matmul": answers("bfloat16", "bfloat16")})


def test_a_hint_for_the_result_that_is_none():
    fails('PrimType("int8")', "for the result", rules={"exp": answers(FULL, PrimType("int8"))})


def test_nothing_instead_of_a_list():
    def forgetful(args, ret_type, amp_dtype):
        return None

    fails("forgetful", "%a = relax.matmul(", rules={"matmul": forgetful})


def test_a_rule_that_raises_names_the_call_and_the_cause():
    def broken(args, ret_type, amp_dtype):
        raise ZeroDivisionError("no such thing")

    message = fails(
        "broken",
        "failed on %a = relax.matmul(",
        "in @main",
        "ZeroDivisionError: no such thing",
        rules={"matmul": broken},
    )
    assert "float32" in message


def test_a_rule_that_wants_the_opposite_of_what_it_is_given():
    def stubborn(args, ret_type, amp_dtype):
        given = args[0].checked_type.dtype.dtype
        return [PrimType("float32" if given == amp_dtype else amp_dtype)]

    fails("stubborn", "contradicts itself on %", "relax.exp", rules={"exp": stubborn})


def test_a_rule_that_wants_another_result_than_it_is_given():
    def stubborn(args, ret_type, amp_dtype):
        given = ret_type.dtype.dtype
        return [PrimType(amp_dtype), PrimType(amp_dtype), PrimType("float32" if given == amp_dtype else amp_dtype)]

    fails("stubborn", "contradicts itself on the result of %a", rules={"matmul": stubborn})


def test_a_mix_that_tvm_refuses():
    @I.ir_module
    class Sum:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
            z = R.add(x, y)
            return z

    fails("TVM refuses", "float32", "bfloat16", "%z", rules={"relax.add": answers(LOW, FULL)}, mod=Sum)


def test_a_rule_that_names_one_of_two_arguments_that_must_agree():
    fails("the casting rule low(1) wants", "%a", "Try low(2) or full(2)", rules={"matmul": low(1)})


def test_an_operator_that_tvm_describes_in_its_refusal_is_called_by_its_name():
    @I.ir_module
    class Normalized:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), g: R.Tensor((4,), "float32")):
            z = R.nn.layer_norm(x, g, g, axes=[-1])
            return z

    message = fails(": relax.nn.layer_norm requires", "Try low(3) or", rules={"layer_norm": low(1)}, mod=Normalized)
    assert "ir.Op(" not in message


def test_a_rule_that_names_more_arguments_than_a_call_of_a_variadic_operator_has():
    @I.ir_module
    class Packed:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            z = R.call_pure_packed("some.function", x, ty_args=R.Tensor((4, 4), "float32"))
            return z

    fails(
        "%z = relax.call_pure_packed(",
        "takes 1 tensor",
        "try low((1,))",
        rules={"call_pure_packed": low(3)},
        mod=Packed,
    )


def test_a_module_that_is_not_well_formed():
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    unbound = relax.Var("unbound", relax.TensorType((4, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, unbound)))
    mod = builder.get()
    fails("not well formed", "unbound", "Normalize()", error=IllFormedModuleError, mod=mod)


def test_a_module_without_relax_functions():
    @I.ir_module
    class Kernels:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((4,), "float32")):
            for i in T.serial(4):
                a[i] = T.float32(0)

    fails("no Relax function", "kernel", error=IllFormedModuleError, mod=Kernels)


def test_an_empty_module():
    fails("no Relax function", "nothing", error=IllFormedModuleError, mod=tvm.IRModule({}))


@pytest.mark.parametrize(("first", "second"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_a_module_that_was_autocast_with_another_dtype(first, second):
    once = amp.autocast(Module, dtype=first)
    fails(first, repr(second), "cannot be autocast again", "start from the float32", mod=once, dtype=second)


@pytest.mark.parametrize(
    ("option", "value", "legal"),
    [
        ("dtype", "float8_e4m3fn", "'bfloat16', 'float16'"),
        ("dtype", "float32", "'bfloat16', 'float16'"),
        ("out_dtype", "float16", "None, 'float32', 'bfloat16'"),
        ("objective", "latency", "'bytes', 'casts'"),
        ("solver", "random", "'optimal', 'greedy'"),
    ],
)
def test_an_option_with_an_illegal_value_is_told_the_legal_ones(option, value, legal):
    fails(f"{option}={value!r}", legal, error=AutocastError, **{option: value})


def test_an_illegal_option_is_an_error_before_the_pass_runs():
    with pytest.raises(AutocastError, match="dtype='half'"):
        amp.AutoCast("half")


def test_errors_keep_their_class_in_a_sequence_of_passes():
    sequence = tvm.transform.Sequential([relax.transform.Normalize(), amp.AutoCast()])
    with amp.CustomTypeHint({"matmul": answers()}), pytest.raises(CastingRuleError, match="0 hints"):
        sequence(Module)


def test_ill_formed_modules_keep_their_class_in_a_sequence_of_passes():
    with pytest.raises(IllFormedModuleError, match="no Relax function"):
        tvm.transform.Sequential([amp.AutoCast()])(tvm.IRModule({}))


def test_after_an_error_the_same_pass_works_again():
    cast = amp.AutoCast()
    with amp.CustomTypeHint({"matmul": answers()}), pytest.raises(CastingRuleError):
        cast(Module)
    assert cast.report is None
    cast(Module)
    assert cast.report.casts > 0


def test_a_missing_rule_can_be_given_for_a_while(monkeypatch):
    monkeypatch.delitem(registry._rows, "relax.split")
    with amp.CustomTypeHint({"split": follow(1)}):
        assert amp.autocast(Module).report.is_optimal
