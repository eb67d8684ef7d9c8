"""Models whose parameters arrive in low precision: float32 masters of them learn, or they learn without."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast.training import MSE, SGD, AdamW, Trainer, training_step
from tests.training.modules import network

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def low(dtype: str) -> nn.Module:
    return network().to(DTYPES[dtype])


def batch(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 5, generator=generator), torch.randn(6, 7, generator=generator)
    return x.to(DTYPES[dtype]), y


def imported(module: nn.Module, dtype: str) -> autocast.Model:
    return autocast.from_torch(module, batch(dtype)[:1])


@cache
def imported_low(dtype: str) -> autocast.Model:
    return imported(low(dtype), dtype)


def trainer(dtype: str, learning_rate: float = 0.05, **options: object) -> Trainer:
    return Trainer(imported_low(dtype), MSE(), SGD(), learning_rate=learning_rate, **options)


def stored(trained: Trainer) -> set[str]:
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    return {str(trained.executable.state[name].dtype) for name in names}


@pytest.mark.parametrize("dtype", DTYPES)
def test_masters_are_float32_and_step_as_torch_does(dtype: str) -> None:
    module = low(dtype)
    x, y = batch(dtype)
    ours = trainer(dtype)
    loss = ours.step((x, y))
    expected = nn.functional.mse_loss(module(x).float(), y)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=2e-2)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        moved = parameter.detach().float() - 0.05 * parameter.grad.float()
        reached = ours.executable.state[name].numpy()
        assert reached.dtype == np.float32
        np.testing.assert_allclose(reached, moved.numpy(), atol=0.05 * 0.02 * float(parameter.grad.abs().max()))


@pytest.mark.parametrize("policy", [None, "rules", "mp1", "mp4", "default"])
def test_every_preset_trains_a_bfloat16_model_with_masters(policy: str | None) -> None:
    trained = trainer("bfloat16", amp=policy)
    losses = trained.fit([batch("bfloat16")] * 30, progress=False)
    assert losses[-1] < 0.8 * losses[0]
    assert stored(trained) == {"float32"}


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [
        ("bfloat16", "rules, fp32_params=False"),
        ("bfloat16", "mp0, fp32_params=False"),
        ("float16", "dtype=float16, fp32_params=False"),
    ],
)
def test_without_masters_parameters_stay_as_they_arrived(dtype: str, policy: str) -> None:
    trained = trainer(dtype, amp=policy)
    losses = trained.fit([batch(dtype)] * 30, progress=False)
    assert losses[-1] < 0.8 * losses[0]
    assert stored(trained) == {dtype}


def test_what_a_low_parameter_cannot_hold_of_an_update_its_master_keeps() -> None:
    module = low("bfloat16")
    reached = {}
    for policy in ("rules", "rules, fp32_params=False"):
        trained = trainer("bfloat16", learning_rate=1e-6, amp=policy)
        trained.fit([batch("bfloat16")] * 3, progress=False)
        reached[policy] = trained.executable.state["2.weight"].numpy().astype("float32")
    start = module[2].weight.detach().float().numpy()
    assert (reached["rules"] != start).mean() > 0.5
    np.testing.assert_array_equal(reached["rules, fp32_params=False"], start)


def test_what_training_reached_goes_back_in_the_dtype_in_which_it_arrived() -> None:
    module = low("bfloat16")
    before = copy.deepcopy(module)
    trained = trainer("bfloat16", amp="bfloat16")
    trained.fit([batch("bfloat16")] * 5, progress=False)
    assert {str(tensor.dtype) for tensor in trained.trained().params.values()} == {"bfloat16"}
    trained.to_torch(module)
    assert module[0].weight.dtype == torch.bfloat16
    assert not torch.equal(module[0].weight, before[0].weight)


def test_a_checkpoint_goes_on_to_the_last_bit(tmp_path) -> None:
    path = tmp_path / "run.safetensors"
    whole = trainer("bfloat16", amp="bfloat16").fit([batch("bfloat16")] * 6, progress=False)
    first = trainer("bfloat16", amp="bfloat16")
    first.fit([batch("bfloat16")] * 4, progress=False)
    first.save(path)
    second = trainer("bfloat16", amp="bfloat16")
    second.load(path)
    assert second.fit([batch("bfloat16")] * 2, progress=False) == whole[4:]


def test_a_model_that_is_float32_already_gets_no_casts() -> None:
    step = training_step(autocast.from_torch(network(), (torch.zeros(6, 5),)), MSE(), SGD())
    assert "astype" not in step.main.script().replace('R.astype(step, dtype="float64")', "")


class Adapted(nn.Module):
    """A frozen linear layer in bfloat16, and a float32 adapter of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 7).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 7, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer, and what the adapter adds to it."""
        return self.base(x) + self.up(self.down(x.float())).to(x.dtype)


@pytest.mark.parametrize("policy", [None, "rules", "mp1", "mp4", "default"])
def test_adapters_of_a_frozen_bfloat16_base_learn_and_the_base_stays(policy: str | None) -> None:
    torch.manual_seed(0)
    module = Adapted()
    trained = Trainer(imported(module, "bfloat16"), MSE(), AdamW(), learning_rate=0.05, amp=policy)
    losses = trained.fit([batch("bfloat16")] * 40, progress=False)
    assert losses[-1] < 0.8 * losses[0]
    kept = {name for name in trained.executable.state if "/" not in name}
    assert kept == {"down.weight", "up.weight", "optimizer_step"}
    reached = trained.trained()
    assert str(reached.params["base.weight"].dtype) == "bfloat16"
    assert (reached.params["base.weight"].numpy() == imported(module, "bfloat16").params["base.weight"].numpy()).all()
