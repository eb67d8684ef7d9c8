"""Properties of presets over random modules."""

from __future__ import annotations

import pytest
import tvm
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tvm import relax

import type_hints
from autocast import amp
from autocast.ir import Reading, identity, is_constant
from autocast.policy import PRESETS, UNSUPPORTED, Policy
from autocast.policy.facts import unholdable
from tests.passes.erasure import erase
from tests.passes.golden import casts_that_change_nothing
from tests.passes.random_modules import modules
from tests.passes.test_auto_cast_properties import DTYPES, all_calls

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
some = settings(max_examples=20, suppress_health_check=_SLOW)


@st.composite
def cases(draw):
    """A module, and the AMP dtype it was drawn for."""
    dtype = draw(st.sampled_from(DTYPES))
    return draw(modules(amp=dtype)), dtype


@given(cases())
@settings(max_examples=50, suppress_health_check=_SLOW)
def test_mp0_is_the_identity_where_every_cast_changes_something(case):
    mod, dtype = case
    assume(not casts_that_change_nothing(mod))
    tvm.ir.assert_structural_equal(amp.autocast(mod, policy=Policy(preset="mp0", dtype=dtype)), mod)


@pytest.mark.parametrize("preset", PRESETS)
@given(cases())
@some
def test_the_output_of_every_preset_is_well_typed_and_erases_to_the_input(preset, case):
    mod, dtype = case
    out = amp.autocast(mod, policy=Policy(preset=preset, dtype=dtype))
    relax.analysis.well_formed(out)
    assert out.report.is_optimal
    tvm.ir.assert_structural_equal(erase(out, dtype), erase(mod, dtype), map_free_vars=True)
    for call in all_calls(out):
        if isinstance(call.op, tvm.ir.Op):
            again = relax.BlockBuilder().normalize(relax.Call(call.op, call.args, call.attrs, call.ty_args))
            tvm.ir.assert_structural_equal(again.ty, call.ty)


def float32_operands(call: relax.Call) -> set[int]:
    """The positions of a call's float32 tensors, tuples of them included."""
    found = set()
    for at, arg in enumerate(call.args):
        fields = arg.ty.fields if isinstance(arg.ty, tvm.ir.TupleType) else [arg.ty]
        if any(isinstance(field, relax.TensorType) and field.dtype == "float32" for field in fields):
            found.add(at)
    return found


@pytest.mark.parametrize("preset", ["mp4", "pure"])
@given(case=cases(), listed=st.lists(st.sampled_from(["exp", "nn.softmax", "matmul", "add"]), max_size=2))
@some
@pytest.mark.filterwarnings("ignore::autocast.errors.PolicyWarning")
def test_mp4_and_pure_have_no_float32_operator_but_the_unsupported(preset, case, listed):
    mod, dtype = case
    out = amp.autocast(mod, policy=Policy(preset=preset, dtype=dtype, unsupported_ops=listed))
    unsupported = {*UNSUPPORTED, *(f"relax.{name}" for name in listed)}
    too_large = unholdable(Reading(out), (), (), dtype)
    for call in all_calls(out):
        if not isinstance(call.op, tvm.ir.Op) or call.op.name == "relax.astype":
            continue
        row = type_hints.table_row(call.op.name)
        concerned = float32_operands(call) & row.rule.which
        if any(identity(arg) in too_large or (is_constant(arg) and arg.ty.dtype == "float32") for arg in call.args):
            continue  # a literal that the low dtype cannot hold, or what is made of it
        if call.op.name in unsupported:
            assert concerned or not row.rule.which
        else:
            assert not concerned, call


@given(case=cases(), listed=st.lists(st.sampled_from(["exp", "nn.softmax", "matmul", "nn.relu"]), max_size=3))
@some
@pytest.mark.filterwarnings("ignore::autocast.errors.PolicyWarning")
def test_mp1_is_low_in_products_and_where_a_list_says_so_and_nowhere_else(case, listed):
    mod, dtype = case
    report = amp.autocast(mod, policy=Policy(preset="mp1", dtype=dtype, low_ops=listed)).report
    for decision in report.decisions:
        name = decision.operator.removeprefix("relax.")
        if name == "astype" or decision.mode == "as is" or decision.rule == "opaque":
            continue
        assert decision.mode == (dtype if name == "matmul" or name in listed else "float32"), decision
        if name == "matmul":
            assert decision.result == (dtype if name in listed else "float32")
