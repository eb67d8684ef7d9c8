"""Ten steps of each optimizer, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autocast import vm
from autocast.errors import TrainingError
from autocast.training.losses import MSE
from autocast.training.optimizers import LAMB, SGD, Adam, AdamW, Group, Optimizer
from autocast.training.step import training_step
from tests.training.modules import batches, imported, imported_network, network, rate

RATE = 0.02


def trained(optimizer: Optimizer, steps: int = 10) -> dict[str, torch.Tensor]:
    executable = vm.compile(training_step(imported_network(), MSE(), optimizer))
    for x, y in batches(steps):
        executable(x, y, rate(RATE))
    return {name: torch.from_dlpack(value) for name, value in executable.state.items()}


def trained_by_torch(
    build: Callable[[nn.Sequential], torch.optim.Optimizer], steps: int = 10
) -> dict[str, torch.Tensor]:
    module = network()
    optimizer = build(module)
    for x, y in batches(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return {name: value.detach() for name, value in module.named_parameters()}


def biases_apart(module: nn.Sequential, **changes: Any) -> list[dict]:
    weights = [value for name, value in module.named_parameters() if name.endswith("weight")]
    biases = [value for name, value in module.named_parameters() if name.endswith("bias")]
    return [{"params": weights}, {"params": biases, **changes}]


CASES: list[tuple[Optimizer, Callable[[nn.Sequential], torch.optim.Optimizer]]] = [
    (SGD(), lambda m: torch.optim.SGD(m.parameters(), RATE)),
    (SGD(momentum=0.9), lambda m: torch.optim.SGD(m.parameters(), RATE, momentum=0.9)),
    (
        SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda m: torch.optim.SGD(m.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    (Adam(), lambda m: torch.optim.Adam(m.parameters(), RATE)),
    (
        Adam(weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3),
        lambda m: torch.optim.Adam(m.parameters(), RATE, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3),
    ),
    (AdamW(), lambda m: torch.optim.AdamW(m.parameters(), RATE)),
    (AdamW(weight_decay=0.3), lambda m: torch.optim.AdamW(m.parameters(), RATE, weight_decay=0.3)),
    (
        AdamW(weight_decay=0.3, groups=(Group("*.bias", weight_decay=0.0, learning_rate_factor=0.5),)),
        lambda m: torch.optim.AdamW(biases_apart(m, weight_decay=0.0, lr=RATE / 2), RATE, weight_decay=0.3),
    ),
    (
        Adam(groups=(Group("*.bias", betas=(0.5, 0.9)),)),
        lambda m: torch.optim.Adam(biases_apart(m, betas=(0.5, 0.9)), RATE),
    ),
]


@pytest.mark.parametrize(("optimizer", "build"), CASES, ids=[repr(optimizer) for optimizer, _ in CASES])
def test_ten_steps_end_where_torch_ends(optimizer, build):
    state, expected = trained(optimizer), trained_by_torch(build)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=2e-5, atol=2e-6)
    assert int(state["optimizer_step"]) == 10


def test_what_the_loss_does_not_depend_on_is_not_decayed():
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 7), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.used(x), self.idle(x)

    step = training_step(imported(Idle()), MSE(), AdamW())
    assert [name for name in step.updated if "/" not in name] == ["used.weight", "used.bias", "optimizer_step"]
    assert {"idle.weight", "idle.bias"} <= step.params.keys()


def test_parameters_of_one_shape_and_group_share_a_function():
    module = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 7))
    decayed = AdamW(groups=(Group("0.*", weight_decay=0.0),))
    step = training_step(imported(module), MSE(), decayed)
    names = sorted(var.name_hint for var in step.mod.get_global_vars())
    assert names == ["adamw_5", "adamw_5_1", "adamw_5x5", "adamw_5x5_1", "adamw_7", "adamw_7x5", "main"]


def test_a_parameter_without_elements_is_trained_as_any_other():
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.none = nn.Linear(5, 7), nn.Parameter(torch.zeros(0, 7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.none.sum(0)

    executable = vm.compile(training_step(imported(Empty()), MSE(), Adam()))
    ((x, y),) = batches(1)
    assert executable(x, y, rate(RATE)) > 0
    assert tuple(executable.state["exp_avg/none"].shape) == (0, 7)


def test_an_optimizer_prints_as_what_makes_it():
    optimizer = AdamW(groups=(Group("*.bias", "*norm*", weight_decay=0.0),))
    namespace = {"AdamW": AdamW, "Group": Group}
    assert eval(repr(optimizer), namespace) == optimizer
    assert hash(eval(repr(optimizer), namespace)) == hash(optimizer)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SGD(momentum=1.0), "SGD: momentum is 1.0, expected 0 to 1, 1 excluded"),
        (lambda: SGD(nesterov=True), "nesterov is True, expected a momentum above 0 with it"),
        (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas is \(0.9, 1.0\), expected two numbers from 0 to 1"),
        (lambda: AdamW(weight_decay=-1.0), "AdamW: weight_decay is -1.0, expected a finite number of 0 or more"),
        (
            lambda: SGD(groups=(Group("*.bias", beta=1.0),)),
            r"changes \['beta'\]; expected patterns of names, then some of learning_rate_factor, momentum",
        ),
        (lambda: SGD(groups=(Group(weight_decay=0.0),)), "changes no parameters"),
        (lambda: SGD(groups=("*.bias",)), r"SGD: groups is \('\*.bias',\), expected a tuple of Groups"),
        (lambda: AdamW(betas=0.9), r"AdamW: betas is 0.9, expected two numbers .* as \(0.9, 0.999\)"),
        (lambda: Adam(eps="1e-8"), "Adam: eps is '1e-8', expected a finite number of 0 or more"),
        (lambda: AdamW(lr=1e-3), r"AdamW: got the option 'lr'; the learning rate .* Trainer\(..., learning_rate=...\)"),
        (lambda: LAMB(beta=0.9), "LAMB: got the option 'beta'; nearest: betas"),
        (lambda: SGD(iter(())), "SGD: got a .*iterator without a name; what is trained is the model"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(build, message):
    with pytest.raises(TrainingError, match=message):
        build()


def test_a_pattern_that_matches_nothing_is_an_error():
    optimizer = SGD(weight_decay=0.1, groups=(Group("*LayerNorm*", weight_decay=0.0),))
    with pytest.raises(TrainingError, match=r"'\*LayerNorm\*' .* matches none of the 4 trained parameters \(0.weight"):
        training_step(imported_network(), MSE(), optimizer)
