"""Properties of presets over random modules."""

from __future__ import annotations

import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast import amp
from autocast.policy import PRESETS, Policy
from tests.passes.erasure import erase
from tests.passes.random_modules import modules
from tests.passes.test_auto_cast_properties import DTYPES

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
some = settings(max_examples=40, suppress_health_check=_SLOW)


@st.composite
def cases(draw):
    """A module, and the AMP dtype it was drawn for."""
    dtype = draw(st.sampled_from(DTYPES))
    return draw(modules(amp=dtype)), dtype


@given(cases())
@settings(max_examples=150, suppress_health_check=_SLOW)
def test_mp0_is_the_identity(case):
    mod, dtype = case
    tvm.ir.assert_structural_equal(amp.autocast(mod, policy=Policy(preset="mp0", dtype=dtype)), mod)


@pytest.mark.parametrize("preset", PRESETS)
@given(cases())
@some
def test_erasing_the_casts_of_every_preset_gives_the_input_back(preset, case):
    mod, dtype = case
    out = amp.autocast(mod, policy=Policy(preset=preset, dtype=dtype))
    relax.analysis.well_formed(out)
    assert out.report.is_optimal
    tvm.ir.assert_structural_equal(erase(out, dtype), erase(mod, dtype), map_free_vars=True)
