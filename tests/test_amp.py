"""RAF's face: what `autocast.amp.autocast` takes, and what it says to what it does not take."""

from __future__ import annotations

import pytest
import torch
import tvm
from torch import nn

import autocast
from autocast import amp
from autocast.errors import AutocastError, InputError, SlowDtypeWarning


@pytest.fixture(scope="module")
def model() -> autocast.Model:
    return autocast.from_torch(nn.Linear(4, 3).eval(), (torch.randn(2, 4),))


def test_example_inputs_may_be_given_as_raf_takes_them(model):
    assert amp.autocast(model, [torch.randn(2, 4)]).report.casts == amp.autocast(model).report.casts


def test_example_inputs_may_be_given_by_name(model):
    assert amp.autocast(model, {"input": torch.randn(2, 4)}).report.casts == amp.autocast(model).report.casts
    assert amp.autocast(model.mod, {"input": torch.randn(2, 4)}) is not None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([torch.zeros(3)], r"main: input input is float32\[3\], expected float32\[2, 4\]\. Give it 2 axes"),
        ([torch.zeros(2, 4, dtype=torch.float64)], r"is float64\[2, 4\], expected float32\[2, 4\]\. Convert it"),
        ([], "got 0 inputs, expected 1"),
        ([torch.zeros(2, 4)] * 2, "got 2 inputs, expected 1"),
        (torch.zeros(2, 4), "got one tensor for the inputs, expected a sequence"),
        ({"x": torch.zeros(2, 4)}, r"names \['x'\], expected \['input'\]: input is missing; x is none of them"),
    ],
)
def test_example_inputs_that_are_not_the_models_are_an_error(model, args, message):
    with pytest.raises(InputError, match=f"autocast: the example inputs are not those of the model.*{message}"):
        amp.autocast(model, args)


def test_example_inputs_for_a_module_without_main_are_an_error(model):
    mod = tvm.IRModule({"other": model.main.with_attr("global_symbol", "other")})
    with pytest.raises(InputError, match=r"functions \['other'\], expected one called main.*autocast\(mod\)"):
        amp.autocast(mod, [torch.zeros(2, 4)])


def test_a_torch_dtype_is_a_dtype(model):
    assert amp.autocast(model, dtype=torch.float16).report.dtype == "float16"


@pytest.mark.parametrize("mistaken", ["float16", torch.float16])
def test_a_dtype_in_the_place_of_the_inputs_is_an_error_that_says_where_it_belongs(model, mistaken):
    with pytest.raises(AutocastError, match=r"second argument is the example inputs.*try dtype="):
        amp.autocast(model, mistaken)


def test_any_field_of_a_policy_may_be_given_by_itself(model):
    short, whole = (
        amp.autocast(model, preset="mp1", low_names="weight"),
        amp.autocast(model, policy="mp1, low_names=weight"),
    )
    assert short.report.decisions == whole.report.decisions


def test_a_field_that_there_is_not_is_an_error_with_the_nearest(model):
    with pytest.raises(AutocastError, match=r"got the option 'prest'; nearest: preset"):
        amp.autocast(model, prest="mp1")
    with pytest.raises(AutocastError, match=r"try policy='preset=\"mp1\", low_ops=\(\"nn.relu\",\)'"):
        amp.autocast(model, policy="mp1", low_ops="relu")


def test_a_torch_module_is_refused_with_the_way_to_import_it():
    with pytest.raises(AutocastError, match=r"got a Linear.*autocast\.from_torch"):
        amp.autocast(nn.Linear(4, 3))


def test_the_result_is_a_model_that_shares_its_parameters_and_carries_a_report(model):
    low = amp.autocast(model)
    assert low.params is model.params
    assert low.report.dtype == "bfloat16"
    assert model.report is None


def test_a_dtype_that_nothing_multiplies_here_is_warned_of_once(model, monkeypatch):
    monkeypatch.setenv("AUTOCAST_TARGET", "x86-64-v3")
    monkeypatch.setattr(amp, "_warned", set())
    with pytest.warns(SlowDtypeWarning, match=r"bfloat16 is only a storage format on x86-64-v3") as caught:
        amp.autocast(model)
        amp.autocast(model)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_dtype_that_nothing_is_cast_to_is_not_warned_of(model, monkeypatch):
    monkeypatch.setenv("AUTOCAST_TARGET", "x86-64-v3")
    monkeypatch.setattr(amp, "_warned", set())
    amp.autocast(model, preset="mp0")
    assert amp._warned == set()


def test_a_dtype_with_a_unit_of_its_own_is_not_warned_of(model, monkeypatch):
    monkeypatch.setenv("AUTOCAST_TARGET", "znver4")
    monkeypatch.setattr(amp, "_warned", set())
    amp.autocast(model)
    assert amp._warned == set()
