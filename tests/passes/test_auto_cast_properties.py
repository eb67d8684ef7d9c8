"""Properties of AutoCast over random modules: minimal, erasable, idempotent, valid, and pure."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tvm import relax

import type_hints
from autocast import amp
from autocast.passes.auto_cast import auto_cast
from autocast.policy import PRESETS, Policy
from tests.passes import brute_force
from tests.passes.erasure import erase
from tests.passes.golden import casts_that_change_nothing
from tests.passes.random_modules import modules

op = relax.op

DTYPES = ("bfloat16", "float16")
OBJECTIVES = ("bytes", "casts")
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
some = settings(max_examples=20, suppress_health_check=_SLOW)

options = st.tuples(st.sampled_from(DTYPES), st.sampled_from(OBJECTIVES))


@st.composite
def cases(draw, **kwargs):
    """A module, the AMP dtype it was drawn for, and an objective."""
    dtype, objective = draw(options)
    return draw(modules(amp=dtype, **kwargs)), dtype, objective


def calls(expr: relax.Expr) -> list[relax.Call]:
    """Every call below an expression."""
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(expr, lambda e: found.append(e) if isinstance(e, relax.Call) else None)
    return found


def all_calls(mod: tvm.IRModule) -> list[relax.Call]:
    """Every call of a module."""
    return [call for function in mod.functions.values() for call in calls(function)]


def is_cast(call: relax.Call, dtype: str) -> bool:
    """Whether a call converts between float32 and `dtype`."""
    if not (isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.astype"):
        return False
    return {str(call.args[0].ty.dtype), str(call.attrs.dtype)} == {"float32", dtype}


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(data=st.data())
@settings(max_examples=30, suppress_health_check=_SLOW)
def test_the_cost_is_the_minimum_over_all_assignments(objective, data):
    mod = data.draw(modules(max_blocks=2, max_size=4))
    prices = brute_force.read(mod, "bfloat16", objective)
    assume(prices.choices <= 10)
    _, report = auto_cast(mod, Policy(objective=objective), brute_force.Costs())
    assert report.cost == prices.minimum()
    assert report.lower_bound == report.cost


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_an_author_rounds_and_widens_again_costs_what_its_reader_makes_of_it(objective):
    w, builder = relax.Var("w", relax.TensorType((8, 8), "float32")), relax.BlockBuilder()
    with builder.function("main", [w]):
        wide = builder.emit(op.astype(builder.emit(op.astype(w, "bfloat16")), "float32"))
        view = builder.emit(op.expand_dims(wide, 0))  # takes no cast into its loads, as a product would
        builder.emit_func_output(builder.emit(op.matmul(view, view)))
    _, report = auto_cast(builder.get(), Policy(objective=objective), brute_force.Costs())
    assert report.cost == brute_force.read(builder.get(), "bfloat16", objective).minimum()


@given(mod=modules(max_blocks=2, max_size=4))
@some
def test_among_equally_cheap_assignments_the_one_that_moves_the_fewest_bytes_is_taken(mod):
    prices = brute_force.read(mod, "bfloat16", "bytes")
    assume(prices.choices <= 10)
    _, report = auto_cast(mod, Policy(objective="bytes"), brute_force.Costs())
    moved = sum(extra for extra, low in zip(report._plan.problem.traffic, report._low, strict=True) if not low)
    assert moved == prices.best_traffic()


@given(cases())
@some
def test_the_number_of_casts_in_the_output_is_the_number_reported(case):
    mod, dtype, objective = case
    out = amp.autocast(mod, dtype=dtype, objective=objective)
    assert out.report.casts == sum(is_cast(call, dtype) for call in all_calls(out))


@given(mod=modules())
@some
def test_with_the_objective_casts_the_cost_is_the_number_of_casts_in_the_output(mod):
    out = amp.autocast(mod, objective="casts")
    assert out.report.cost == sum(is_cast(call, "bfloat16") for call in all_calls(out))


@given(cases())
@some
def test_the_output_is_well_formed_and_its_types_are_those_that_tvm_infers(case):
    mod, dtype, objective = case
    out = amp.autocast(mod, dtype=dtype, objective=objective)
    relax.analysis.well_formed(out)
    for call in all_calls(out):
        if isinstance(call.op, tvm.ir.Op):
            again = relax.BlockBuilder().normalize(relax.Call(call.op, call.args, call.attrs, call.ty_args))
            tvm.ir.assert_structural_equal(again.ty, call.ty)


@given(case=cases(), preset=st.sampled_from(sorted(PRESETS)))
@some
def test_no_cast_to_the_dtype_that_its_operand_has_is_left(case, preset):
    mod, dtype, objective = case
    policy = Policy(dtype=dtype, objective=objective, preset=preset)
    once = amp.autocast(mod, policy=policy)
    assert casts_that_change_nothing(once) == []
    assert casts_that_change_nothing(amp.autocast(once, policy=policy)) == []


@given(cases())
@some
def test_erasing_the_casts_gives_the_input_back(case):
    mod, dtype, objective = case
    out = amp.autocast(mod, dtype=dtype, objective=objective)
    tvm.ir.assert_structural_equal(erase(out, dtype), erase(mod, dtype), map_free_vars=True)


@given(cases())
@some
def test_the_input_module_is_not_changed(case):
    mod, dtype, objective = case
    text, hashed = mod.script(), tvm_ffi.structural_hash(mod)
    amp.autocast(mod, dtype=dtype, objective=objective)
    assert (mod.script(), tvm_ffi.structural_hash(mod)) == (text, hashed)


@given(cases())
@some
def test_signatures_are_kept(case):
    mod, dtype, objective = case
    out = amp.autocast(mod, dtype=dtype, objective=objective)
    for global_var, function in mod.functions.items():
        new = out[global_var.name_hint]
        assert [param.name for param in new.params] == [param.name for param in function.params]
        for param, old in zip(new.params, function.params, strict=True):
            tvm.ir.assert_structural_equal(param.ty, old.ty, map_free_vars=True)
        tvm.ir.assert_structural_equal(new.ret_ty, function.ret_ty, map_free_vars=True)


@given(cases(casts_in_branches=False))
@some
def test_autocast_twice_is_autocast_once(case):
    mod, dtype, objective = case
    once = amp.autocast(mod, dtype=dtype, objective=objective)
    twice = amp.autocast(once, dtype=dtype, objective=objective)
    tvm.ir.assert_structural_equal(twice, once)


@given(cases())
@some
def test_autocast_twice_makes_no_more_casts_than_once(case):
    # Casts that the author wrote inside a branch may move: the first time their operand is cast outside, so that the
    # second time they stand outside, and may be shared with others.
    mod, dtype, objective = case
    once = amp.autocast(mod, dtype=dtype, objective=objective)
    twice = amp.autocast(once, dtype=dtype, objective=objective)
    assert twice.report.casts <= once.report.casts
    assert twice.report.cost <= once.report.cost


@given(cases())
@some
def test_the_greedy_pass_never_costs_less(case):
    mod, dtype, objective = case
    greedy = amp.autocast(mod, dtype=dtype, objective=objective, solver="greedy")
    optimal = amp.autocast(mod, dtype=dtype, objective=objective)
    relax.analysis.well_formed(greedy)
    assert optimal.report.cost <= greedy.report.cost == optimal.report.greedy_cost
    assert greedy.report.casts == optimal.report.greedy_casts == sum(is_cast(c, dtype) for c in all_calls(greedy))


def _hinted(hint: type_hints.Hint, type) -> list[tuple[str | None, str]]:
    """(hint, dtype) for each tensor of a type."""
    if isinstance(type, tvm.ir.TupleType):
        hints = hint.fields if isinstance(hint, type_hints.TupleType) else [hint] * len(type.fields)
        return [pair for part, field in zip(hints, type.fields, strict=True) for pair in _hinted(part, field)]
    return [(hint.dtype, str(type.dtype))] if isinstance(type, relax.TensorType) else []


@given(cases())
@some
def test_every_rule_asked_again_with_the_types_of_the_output_answers_these_types(case):
    mod, dtype, objective = case
    out = amp.autocast(mod, dtype=dtype, objective=objective)
    for call in all_calls(out):
        if not isinstance(call.op, tvm.ir.Op) or call.op.name == "relax.astype":
            continue
        derived = type_hints.derived_name(call)
        arguments = list(derived.arguments if derived else call.args)
        asked = [type_hints.Argument(arg, arg.ty if arg is not None else None) for arg in arguments]
        rule = type_hints.get_rule(derived.name if derived else call.op.name)
        hints = rule(asked, call.ty, dtype)
        hints = derived.real_hints(hints) if derived else hints
        types = [arg.ty for arg in call.args] + [call.ty] * (len(hints) - len(call.args))
        for hint, type in zip(hints, types, strict=True):
            assert all(wanted in (None, real) for wanted, real in _hinted(hint, type)), call
