"""The trainer: its losses are torch's, batches come in many forms, and what it learnt can be used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import autocast
from autocast.errors import InputError
from autocast.policy import Policy
from autocast.training.schedules import Linear
from tests.training.trainers import batch, make_trainer, small_model, small_module


def torch_losses(module: torch.nn.Module, steps: int, rate: Callable[[int], float]) -> list[float]:
    """The losses of torch's Adam."""
    optimizer = torch.optim.Adam(module.parameters())
    losses = []
    for step in range(steps):
        x, labels = batch(step)
        loss = torch.nn.functional.mse_loss(module(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_follow_torch_with_a_schedule():
    schedule = Linear(0.02, warmup=3, steps=12)
    losses = make_trainer(learning_rate=schedule).fit(batch, 12, progress=False)
    np.testing.assert_allclose(losses, torch_losses(small_module(), 12, schedule), rtol=1e-4)


def test_mixed_precision_follows_float32():
    exact = make_trainer().fit(batch, 12, progress=False)
    low = make_trainer(amp="bfloat16").fit(batch, 12, progress=False)
    np.testing.assert_allclose(low, exact, rtol=0.02)
    assert low != exact


@pytest.mark.parametrize("policy", ["mp1", "mp4", Policy(preset="default", float32_ops=("tanh",))])
def test_a_policy_decides_the_precision_of_a_step_and_leaves_its_updates_in_float32(policy):
    trainer = make_trainer(amp=policy)
    updates = [d for d in trainer.step_model.report.decisions if d.function.startswith("adam_")]
    assert updates and {d.mode for d in updates} <= {"float32", "as is"}
    assert str(Policy.parse(str(trainer.amp))) in repr(trainer)


def test_float16_scales_its_loss_by_default():
    trainer = make_trainer(amp="float16")
    assert "loss_scale" in trainer.step_model.params
    assert "loss_scale" not in make_trainer(amp="float16", loss_scaling=None).step_model.params


def test_a_model_is_not_changed_by_its_training():
    before = {name: tensor.numpy() for name, tensor in small_model().params.items()}
    make_trainer().fit(batch, 2, progress=False)
    for name, tensor in small_model().params.items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])


def test_two_trainers_of_one_model_do_not_share_what_they_learn():
    one, other = make_trainer(), make_trainer()
    one.step(batch(0))
    assert one.step(batch(0)) < other.step(batch(0))


@pytest.mark.parametrize("kind", ["names", "numpy", "list"])
def test_batches_come_as_tuples_lists_or_by_name(kind):
    x, labels = batch(0)
    given = {
        "names": {"labels": labels, "input": x},
        "numpy": (x.numpy(), labels.numpy()),
        "list": [x, labels],
    }[kind]
    trainer = make_trainer()
    assert trainer.input_names == ("input", "labels")
    assert trainer.step(given) == pytest.approx(make_trainer().step((x, labels)), rel=1e-6)


def test_an_iterable_is_trained_on_until_it_ends_or_the_steps_are_done():
    trainer = make_trainer()
    batches = iter([batch(step) for step in range(5)])
    assert len(trainer.fit(batches, 2, progress=False)) == 2
    assert len(trainer.fit(batches, progress=False)) == 3
    assert trainer.steps == 5


def test_progress_shows_steps_and_loss(capsys):
    losses = make_trainer().fit(batch, 3)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert f"{losses[-1]:.4f}" in shown


def test_evaluation_is_the_mean_loss_of_what_was_learnt_and_changes_nothing():
    trainer = make_trainer()
    trainer.fit(batch, 5, progress=False)
    module = small_module()
    trainer.to_torch(module)
    batches = [batch(step) for step in (100, 101)]
    expected = [torch.nn.functional.mse_loss(module(x), labels).item() for x, labels in batches]
    assert trainer.evaluate(batches) == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert trainer.evaluate(batches) == trainer.evaluate(batches)
    assert trainer.steps == 5


def test_the_trained_model_runs_and_keeps_its_parameters_while_training_goes_on():
    trainer = make_trainer()
    trainer.fit(batch, 5, progress=False)
    trained = trainer.trained()
    module = small_module()
    trainer.to_torch(module)
    x, _ = batch(100)
    expected = module(x).detach()
    trainer.step(batch(5))
    torch.testing.assert_close(trained(x), expected, rtol=1e-5, atol=1e-6)
    assert (autocast.amp.autocast(trained)(x) - expected).abs().max() < 0.02


def test_a_torch_module_of_other_shapes_is_refused():
    with pytest.raises(InputError, match=r"to_torch: Linear has no parameters \['0.weight'"):
        make_trainer().to_torch(torch.nn.Linear(2, 2))
