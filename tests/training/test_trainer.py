"""The trainer: its losses are torch's, batches come in many forms, and what it learnt can be used."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import autocast
from autocast.errors import EndOfDataWarning, InputError
from autocast.policy import Policy
from autocast.training import MSE, SGD, Linear, Progress, TensorBoard, Trainer
from tests.training.trainers import BATCH, batch, make_trainer, small_model, small_module


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


def test_data_that_end_before_the_steps_do_are_a_warning():
    trainer = make_trainer()
    with pytest.warns(EndOfDataWarning, match=r"ended after 3 steps, and 20 were asked for"):
        assert len(trainer.fit([batch(step) for step in range(3)], 20, progress=False)) == 3


class _Sampler(torch.utils.data.RandomSampler):
    """Draws an order of its own for each epoch, as torch's distributed sampler does."""

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(epoch)


def _loader() -> torch.utils.data.DataLoader:
    x = torch.cat([batch(step)[0] for step in range(3)])
    data = torch.utils.data.TensorDataset(x, torch.sin(x[:, :3]))
    return torch.utils.data.DataLoader(data, BATCH, sampler=_Sampler(data, generator=torch.Generator()))


def test_epochs_pass_over_a_data_loader_and_callbacks_follow(tmp_path):
    seen: list[Progress] = []
    trainer = make_trainer(learning_rate=Linear(0.01, warmup=0, steps=10))
    losses = trainer.fit(_loader(), epochs=2, progress=False, callbacks=[seen.append])
    assert [(step.steps, step.epoch) for step in seen] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
    assert [step.loss for step in seen] == losses
    assert seen[-1].rate == pytest.approx(0.005)

    resumed = make_trainer(learning_rate=trainer.learning_rate)  # in the middle of the second epoch
    path = tmp_path / "run.safetensors"
    first = resumed.fit(_loader(), 4, epochs=2, progress=False, save_to=path)
    again = make_trainer(learning_rate=trainer.learning_rate)
    assert first + again.fit(_loader(), epochs=2, progress=False, save_to=path) == losses


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (iter([batch(0)]), {"epochs": 2}, "got an iterator and epochs=2, expected batches that can be passed over"),
        (batch, {"epochs": 2}, "from a function, which never ends; expected steps=... alone"),
        ([batch(0)], {"epochs": 0}, "epochs is 0, which counts all passes"),
    ],
)
def test_epochs_that_cannot_be_are_errors(batches, options, message):
    with pytest.raises(InputError, match=message):
        make_trainer().fit(batches, progress=False, **options)


def test_no_line_of_progress_stands_above_an_error_of_arguments(capsys):
    with pytest.raises(InputError, match="expected steps="):
        make_trainer().fit(batch)
    assert capsys.readouterr() == ("", "")


def test_epochs_that_are_done_already_are_an_error():
    trainer = make_trainer()
    trainer.fit([batch(0)], epochs=1, progress=False)
    with pytest.raises(InputError, match=r"epochs is 1, .* and 1 steps are done already"):
        trainer.fit([batch(0)], epochs=1, progress=False)
    assert len(trainer.fit([batch(0)], epochs=3, progress=False)) == 2


def test_tensorboard_gets_the_losses(tmp_path):
    losses = make_trainer().fit(batch, 4, progress=False, callbacks=[TensorBoard(tmp_path, every=2)])
    written = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in written] == [(2, losses[1]), (4, losses[3])]


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


def test_buffers_that_only_training_reads_are_written_back_as_well():
    module = torch.nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 3)))
    module.append(torch.nn.BatchNorm1d(3)).append(torch.nn.Dropout(0.1))
    batches = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(3)]
    trainer = Trainer(autocast.from_torch(module, batches[0][:1]), MSE(), SGD(), learning_rate=0.0)
    trainer.fit(batches, 3, progress=False)
    expected = copy.deepcopy(module)
    for x, _ in batches:
        expected(x)
    trainer.to_torch(module)
    torch.testing.assert_close(module.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)


def test_metrics_are_means_over_examples():
    trainer = make_trainer(amp="bfloat16")
    batches = [batch(step) for step in (100, 101)]
    trained = trainer.trained()
    errors = [(trained(x) - labels).abs().mean() for x, labels in batches]
    means = trainer.evaluate(batches, {"error": lambda y, labels: (y - labels).abs().mean()})
    assert means["error"] == pytest.approx(float(sum(errors)) / 2, rel=0.02)
    assert means["loss"] == pytest.approx(trainer.evaluate(batches), rel=1e-6)


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
