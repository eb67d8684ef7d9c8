"""Presets on the eight architectures: what they compute is as far from torch as their roundings may take it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autocast import amp
from tests.architectures import ARCHITECTURES, flatten, imported

#: The largest relative error of the outputs together. A bfloat16 rounds by up to 2e-3, and roundings add up as noise.
TOLERANCES = {"mp1": 6e-3, "mp4": 1.2e-2}


def error(name: str, policy: str) -> float:
    """The relative error, in the Frobenius norm, of an architecture under a policy against torch in float64."""
    built, model = ARCHITECTURES[name](), imported(name)
    with torch.no_grad():
        module = built.module.double()
        wide = [arg.double() if arg.is_floating_point() else arg for arg in built.args]
        expected = flatten(module(*wide, **built.kwargs))
    found = flatten(amp.autocast(model, policy=policy)(*built.args, **built.kwargs))
    both = [np.concatenate([tensor.detach().double().numpy().ravel() for tensor in side]) for side in (found, expected)]
    return float(np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[1]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_everything_low_is_as_near_as_its_roundings(name):
    assert error(name, "mp4") < TOLERANCES["mp4"]


@pytest.mark.parametrize("name", ["bert", "resnet", "lstm"])
def test_low_products_alone_are_nearer(name):
    assert error(name, "mp1") < TOLERANCES["mp1"]


@pytest.mark.parametrize("preset", ["mp0", "mp1", "mp4", "default", "pure"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_preset_is_optimal_and_mp0_casts_nothing(name, preset):
    report = amp.autocast(imported(name), policy=preset).report
    assert report.is_optimal
    assert (report.casts == 0) == (preset == "mp0")
