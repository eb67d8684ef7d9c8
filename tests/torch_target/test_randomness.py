"""Random numbers are functions of the seed, the step and the place: the same as in compiled models, to the bit."""

from __future__ import annotations

import torch
from torch import nn

import autocast
from autocast.training import MSE, SGD, training_step


def test_dropout_drops_what_compiled_models_drop() -> None:
    module = nn.Sequential(nn.Linear(12, 33), nn.Dropout(0.3), nn.Linear(33, 5)).train()
    x, y = torch.randn(7, 12), torch.randn(7, 5)
    step = training_step(autocast.from_torch(module, (x,)), MSE(), SGD())
    inputs = (x, y, torch.tensor(0.1))
    ours, compiled = autocast.to_torch(step), autocast.compile(step)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(ours(*inputs), compiled(*inputs))


def test_stochastic_rounding_rounds_as_compiled_models_do() -> None:
    from autocast.operators.own.stochastic_round import stochastic_round
    from tests.kernels.modules import module

    mod = module(lambda x, state: stochastic_round(x, state, stream=3), ((5, 300), "float32"), ((2,), "int32"))
    model = autocast.from_relax(mod)
    x = torch.randn(5, 300)
    x[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
    state = torch.tensor([-7, 2], dtype=torch.int32)
    got, expected = autocast.to_torch(model)(x, state), autocast.compile(model)(x, state)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
