"""LAMB and LANS beside their papers' formulas in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from autocast import vm
from autocast.training.losses import MSE
from autocast.training.optimizers import LAMB, LANS, Optimizer
from autocast.training.step import training_step
from tests.training.modules import batches, imported, network, rate

RATE = 0.02
STEPS = 10

#: One step of one parameter: (parameter, gradient, m, v, step) -> (parameter, m, v), all float64.
Rule = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


def ratio(parameter: np.ndarray, update: np.ndarray) -> float:
    return float(np.linalg.norm(parameter) / np.linalg.norm(update)) if parameter.any() and update.any() else 1.0


def lamb(weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6) -> Rule:
    """Algorithm 2 of You et al. (2020), with the identity for phi."""

    def rule(x, g, m, v, step):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        update = m / (1 - betas[0] ** step) / (np.sqrt(v / (1 - betas[1] ** step)) + eps) + weight_decay * x
        return x - RATE * ratio(x, update) * update, m, v

    return rule


def lans(weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6) -> Rule:
    """Algorithm 2 of Zheng et al. (2020), with the identity for phi."""

    def rule(x, g, m, v, step):
        g = g / np.linalg.norm(g) if g.any() else g
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        root = np.sqrt(v / (1 - betas[1] ** step)) + eps
        r = m / (1 - betas[0] ** step) / root + weight_decay * x
        c = g / root + weight_decay * x
        return x - RATE * (betas[0] * ratio(x, r) * r + (1 - betas[0]) * ratio(x, c) * c), m, v

    return rule


def trained(module: nn.Module, optimizer: Optimizer) -> dict[str, np.ndarray]:
    executable = vm.compile(training_step(imported(module), MSE(), optimizer))
    for x, y in batches(STEPS):
        executable(x, y, rate(RATE))
    return {name: value.numpy() for name, value in executable.state.items()}


def trained_by(module: nn.Module, rule: Rule) -> dict[str, np.ndarray]:
    module = module.double()
    moments = {name: (0.0, 0.0) for name, _ in module.named_parameters()}
    for step, (x, y) in enumerate(batches(STEPS), 1):
        module.zero_grad()
        nn.functional.mse_loss(module(x.double()), y.double()).backward()
        for name, parameter in module.named_parameters():
            new, *moments[name] = rule(parameter.detach().numpy(), parameter.grad.numpy(), *moments[name], step)
            parameter.data = torch.from_numpy(new)
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def without_biases() -> nn.Sequential:
    """Biases that are zero: their first step has nothing to be as long as."""
    module = network()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return module


@pytest.mark.parametrize("build", [network, without_biases])
@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (LAMB(), lamb(0.01)),
        (LAMB(weight_decay=0.1), lamb(0.1)),
        (LAMB(weight_decay=0.0, betas=(0.8, 0.95), eps=1e-3), lamb(0.0, (0.8, 0.95), 1e-3)),
        (LANS(), lans(0.01)),
        (LANS(weight_decay=0.1), lans(0.1)),
        (LANS(weight_decay=0.0, betas=(0.8, 0.95), eps=1e-3), lans(0.0, (0.8, 0.95), 1e-3)),
    ],
    ids=lambda value: repr(value) if isinstance(value, Optimizer) else "",
)
def test_ten_steps_end_where_the_formula_does_in_float64(optimizer, rule, build):
    state, expected = trained(build(), optimizer), trained_by(build(), rule)
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", [LAMB(), LANS()], ids=repr)
def test_a_gradient_of_zero_gives_numbers(optimizer):
    module = network()
    module[2].weight.data.zero_()  # nothing reaches the first layer
    state = trained(module, optimizer)
    assert all(np.isfinite(value).all() for value in state.values())


def test_lans_does_not_see_how_long_a_gradient_is():
    x, y = batches(1)[0]
    ends = []
    for scale in (1.0, 1000.0):
        executable = vm.compile(training_step(imported(scaled(network(), scale)), MSE(), LANS()))
        executable(x, y * scale, rate(RATE))
        ends.append(executable.state["0.weight"].numpy())
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-6)


def scaled(module: nn.Sequential, scale: float) -> nn.Sequential:
    """A module whose results are `scale` times as large."""
    for parameter in module[2].parameters():
        parameter.data *= scale
    return module
