"""MXNet's training in mixed precision: `init` and `init_trainer` make a Trainer mixed, and its steps scale the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast.compat.mxnet import amp
from autocast.compat.mxnet.amp import training as mxnet_training
from autocast.errors import PolicyError, TrainingError, UnsupportedError
from autocast.training import SGD, CrossEntropy, DynamicLossScaling, Trainer

BATCH = (torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4)


@pytest.fixture(autouse=True)
def before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """`init` was not called yet, and what a test says by it is forgotten."""
    monkeypatch.setattr(mxnet_training, "_settings", None)


@pytest.fixture
def trainer() -> Trainer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).train()
    return Trainer(autocast.from_torch(module, BATCH[:1]), CrossEntropy(), SGD(), learning_rate=0.1)


def modes(trainer: Trainer, operator: str) -> set[str]:
    return {each.mode for each in trainer.step_model.report.decisions if each.operator == f"relax.{operator}"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_trainer_is_made_mixed_and_trains_as_in_float32(trainer, dtype):
    wide = Trainer(trainer.model, CrossEntropy(), SGD(), learning_rate=0.1)
    amp.init(dtype)
    amp.init_trainer(trainer)
    assert modes(trainer, "matmul") == {dtype}
    found, expected = ([each.step(BATCH) for _ in range(4)] for each in (trainer, wide))
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    assert trainer.steps == 4


def test_the_lists_of_init_are_the_trainers(trainer):
    amp.init(target_precision_ops=["relu"], fp32_ops=["FullyConnected"])
    amp.init_trainer(trainer)
    assert modes(trainer, "nn.relu") == {"float16"}
    assert modes(trainer, "matmul") == {"float32"}


def test_the_loss_is_scaled_by_what_the_trainer_has_reached(trainer):
    amp.init()
    amp.init_trainer(trainer)
    assert trainer.loss_scale == 65536.0
    with amp.scale_loss(2.0, trainer) as scaled:
        assert scaled == 2.0 * 65536
    trainer.step((torch.full((16, 8), float("nan")), BATCH[1]))  # one step that overflows halves the scale
    with amp.scale_loss([1.0, np.ones(2)], trainer) as (one, several):
        assert one == several.max() == 32768.0


def test_gradients_are_unscaled_within_the_step(trainer):
    with pytest.raises(UnsupportedError, match=r"unscale: gradients are unscaled within trainer\.step.*clip_norm"):
        amp.unscale(trainer)


def test_gradients_of_torch_are_refused_as_the_trainer_would_not_see_them(trainer):
    amp.init()
    amp.init_trainer(trainer)
    loss = torch.ones((), requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"trainer.step\(batch\) differentiates"), amp.scale_loss(loss, trainer):
        pass


def test_a_trainer_must_have_been_initialized_to_scale(trainer):
    with pytest.raises(TrainingError, match=r"call amp\.init_trainer"), amp.scale_loss(1.0, trainer):
        pass


def test_init_comes_first(trainer):
    with pytest.raises(PolicyError, match=r"amp.init\(\) was not called"):
        amp.init_trainer(trainer)
    assert trainer.amp is None


def test_a_trainer_that_is_mixed_already_is_refused(trainer):
    amp.init()
    amp.init_trainer(trainer)
    with pytest.raises(PolicyError, match="leave out either its amp= or init_trainer"):
        amp.init_trainer(trainer)


def test_a_trainer_that_has_trained_is_refused_and_stays_as_it_is(trainer):
    trainer.step(BATCH)
    amp.init()
    with pytest.raises(TrainingError, match="1 steps are done; expected a Trainer that has not trained"):
        amp.init_trainer(trainer)
    assert trainer.amp is None
    assert trainer.loss_scale == 1.0


@pytest.mark.parametrize("function", [amp.init_trainer, amp.unscale])
def test_an_optimizer_alone_is_refused(function):
    amp.init()
    with pytest.raises(TypeError, match=r"got SGD, expected an autocast\.training\.Trainer"):
        function(SGD())


def test_init_takes_low_dtypes_alone():
    with pytest.raises(PolicyError, match="init: got target_dtype='int8'"):
        amp.init("int8")


def test_options_that_are_not_given_to_set_amp_stay(trainer):
    scaling = DynamicLossScaling(init_loss_scaling=8.0)
    other = Trainer(trainer.model, CrossEntropy(), SGD(), learning_rate=0.1, clip_norm=1e-6, loss_scaling=scaling)
    other.set_amp("float16")
    assert (other.loss_scale, other.amp.dtype) == (8.0, "float16")
    before = other.step(BATCH)
    assert other.step(BATCH) == pytest.approx(before, abs=1e-5)  # gradients are still clipped to nearly nothing
