"""TVM accepts what the rules answer, for a sample call of every operator with a floating-point tensor argument."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.special import erf, expit
from tvm import relax

import type_hints
from tests.type_hints.samples import SAMPLES, everything, float_dtypes, infer, retype
from type_hints import Argument, PrimType

ROWS = {row.name: row for row in type_hints.list_rules()}
AMP_DTYPES = ("bfloat16", "float16")


def ask(call: relax.Call, args: list[relax.Expr], result_dtype: str, amp_dtype: str) -> list[type_hints.Hint]:
    """What the rule of `call` answers to arguments that have the types of `args`."""
    arguments = [Argument(expr, arg.ty) for expr, arg in zip(call.args, args, strict=True)]
    wanted = relax.TensorType(ndim=1, dtype=result_dtype)
    return ROWS[call.op.name].rule(arguments, wanted, amp_dtype)


def question(call: relax.Call, dtype: str) -> list[relax.Expr]:
    """The arguments of `call` with every floating-point tensor in `dtype`."""
    return [retype(expr, everything(expr, dtype)) for expr in call.args]


def test_every_rule_that_decides_something_has_a_sample():
    # Operators that other tests registered are of the family "custom".
    deciding = {row.name for row in ROWS.values() if row.label in ("low", "full", "follow") and row.family != "custom"}
    assert sorted(deciding - set(SAMPLES) - {"relax.bias_add"}) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_calls_the_operator_it_is_named_after(name):
    assert SAMPLES[name]().op.name == name


@pytest.mark.parametrize("amp_dtype", AMP_DTYPES)
@pytest.mark.parametrize("name", SAMPLES)
def test_answers_are_a_fixed_point_that_tvm_accepts(name, amp_dtype):
    call = SAMPLES[name]()
    for dtype in (amp_dtype, "float32"):
        hints = ask(call, question(call, dtype), dtype, amp_dtype)
        args = [retype(expr, hint) for expr, hint in zip(call.args, hints, strict=False)]
        infer(call, args)
        assert ask(call, args, dtype, amp_dtype) == hints


#: Long sums of what may be stored low: the result is small, and float32.
FLOAT32_RESULTS = ("relax.grad.broadcast_backward", "relax.nn.cross_entropy")


@pytest.mark.parametrize("amp_dtype", AMP_DTYPES)
@pytest.mark.parametrize("name", [name for name in SAMPLES if ROWS[name].label == "follow"])
def test_rules_that_follow_admit_both_precisions_and_so_does_tvm(name, amp_dtype):
    call = SAMPLES[name]()
    for dtype in (amp_dtype, "float32"):
        args = question(call, dtype)
        hints = ask(call, args, dtype, amp_dtype)
        asked = [retype(expr, hint) for expr, hint in zip(call.args, hints, strict=True)]
        in_rule = ROWS[name].rule.which
        assert all(float_dtypes(asked[at].ty) == float_dtypes(args[at].ty) for at in in_rule if at < len(args))
        expected = "float32" if name in FLOAT32_RESULTS else dtype
        assert set(float_dtypes(infer(call, asked))) <= {expected}, "the result is in the precision of the arguments"


@pytest.mark.parametrize("amp_dtype", AMP_DTYPES)
@pytest.mark.parametrize("name", [name for name in SAMPLES if ROWS[name].label in ("low", "full")])
def test_rules_that_demand_a_precision_demand_it_of_all_arguments_they_name(name, amp_dtype):
    call = SAMPLES[name]()
    expected = amp_dtype if ROWS[name].label == "low" else "float32"
    for dtype in (amp_dtype, "float32"):
        hints = ask(call, question(call, dtype), dtype, amp_dtype)
        demanded = [retype(call.args[at], hints[at]) for at in ROWS[name].rule.which if at < len(call.args)]
        found = [found for arg in demanded for found in float_dtypes(arg.ty)]
        assert found and set(found) == {expected}


FREE_RESULTS = [name for name in SAMPLES if getattr(ROWS[name].rule, "free_result", False)]


def test_results_are_free_exactly_where_low_products_have_an_out_dtype():
    low = [name for name in SAMPLES if ROWS[name].label == "low" and not name.startswith("relax.grad.")]
    assert [name for name in low if hasattr(SAMPLES[name]().attrs, "out_dtype")] == FREE_RESULTS


@pytest.mark.parametrize("amp_dtype", AMP_DTYPES)
@pytest.mark.parametrize("name", FREE_RESULTS)
def test_a_free_result_is_what_tvm_makes_of_low_arguments_and_that_out_dtype(name, amp_dtype):
    call = SAMPLES[name]()
    for wanted in (amp_dtype, "float32"):
        *hints, result = ask(call, question(call, "float32"), wanted, amp_dtype)
        assert result == PrimType(wanted)
        args = [retype(expr, hint) for expr, hint in zip(call.args, hints, strict=True)]
        assert float_dtypes(infer(call, args, out_dtype=wanted)) == [wanted]


@pytest.mark.parametrize("name", [name for name in SAMPLES if ROWS[name].label in ("untouched", "cast")])
def test_untouched_arguments_get_no_dtype(name):
    call = SAMPLES[name]()
    assert ask(call, question(call, "float32"), "float32", "bfloat16") == [PrimType(None)] * len(call.args)


SLOPES = {
    "relax.nn.gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "relax.nn.gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relax.nn.silu": lambda x: x * expit(x),
    "relax.nn.selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "relax.nn.softplus": lambda x: np.logaddexp(0, x),
    "relax.sigmoid": expit,
    "relax.tanh": np.tanh,
    "relax.atan": np.arctan,
    "relax.asinh": np.arcsinh,
}


def test_the_slopes_that_reasons_state_are_those_of_the_functions():
    stated = {
        row.name: float(found[1]) for row in ROWS.values() if (found := re.search(r"slope at most ([\d.]+)", row.why))
    }
    assert set(stated) == set(SLOPES)
    x = np.linspace(-20, 20, 400_001)
    for name, function in SLOPES.items():
        steepest = np.max(np.abs(np.diff(function(x)) / np.diff(x)))
        assert steepest <= stated[name] + 1e-6 and steepest > stated[name] - 0.01, name


def test_the_ranges_that_reasons_state_are_those_of_float16():
    with np.errstate(over="ignore"):
        for function, edge in ((np.exp, 11.09), (np.sinh, 11.78), (np.cosh, 11.78), (np.square, 256.0)):
            assert np.isinf(np.float16(function(edge + 0.01)))
            assert np.isfinite(np.float16(function(edge - 0.1)))
    assert np.float16(1.7e-4**2) == 0 and np.float16(1.8e-4**2) != 0
    assert np.float16(2.9e-8) == 0 and np.float16(3.1e-8) != 0
