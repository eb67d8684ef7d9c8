"""The Trainer: its steps are torch's, a run that was interrupted ends where an uninterrupted one does, errors help."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import autocast
from autocast.errors import CheckpointError, DivergedError, InputError, TrainingError
from autocast.policy import Policy
from autocast.training.losses import MSE, NLL, CrossEntropy
from autocast.training.optimizers import SGD, Adam
from autocast.training.schedules import Linear
from autocast.training.trainer import Trainer

BATCH = 6


def small_module(seed: int = 0) -> torch.nn.Module:
    """A network that trains in no time."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 5, generator=generator)
    return x, torch.sin(x[:, :3])


@pytest.fixture(scope="module")
def model():
    return autocast.from_torch(small_module(), batch(0)[:1])


@pytest.fixture
def make(model) -> Callable[..., Trainer]:
    def trainer(**options) -> Trainer:
        return Trainer(model, MSE(), options.pop("optimizer", Adam()), **{"learning_rate": 0.01} | options)

    return trainer


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


def test_losses_follow_torch_with_a_schedule(make):
    schedule = Linear(0.02, warmup=3, steps=12)
    losses = make(learning_rate=schedule).fit(batch, 12, progress=False)
    np.testing.assert_allclose(losses, torch_losses(small_module(), 12, schedule), rtol=1e-4)


def test_mixed_precision_follows_float32(make):
    exact = make().fit(batch, 12, progress=False)
    low = make(amp="bfloat16").fit(batch, 12, progress=False)
    np.testing.assert_allclose(low, exact, rtol=0.02)
    assert low != exact


@pytest.mark.parametrize("policy", ["mp1", "mp4", Policy(preset="default", float32_ops=("tanh",))])
def test_a_policy_decides_the_precision_of_a_step_and_leaves_its_updates_in_float32(make, policy):
    trainer = make(amp=policy)
    updates = [d for d in trainer.step_model.report.decisions if d.function.startswith("adam_")]
    assert updates and {d.mode for d in updates} <= {"float32", "as is"}
    assert str(Policy.parse(str(trainer.amp))) in repr(trainer)


def test_float16_scales_its_loss_by_default(make):
    trainer = make(amp="float16")
    assert "loss_scale" in trainer.step_model.params
    assert "loss_scale" not in make(amp="float16", loss_scaling=None).step_model.params


def test_a_model_is_not_changed_by_its_training(make, model):
    before = {name: tensor.numpy() for name, tensor in model.params.items()}
    make().fit(batch, 2, progress=False)
    for name, tensor in model.params.items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])


def test_two_trainers_of_one_model_do_not_share_what_they_learn(make):
    one, other = make(), make()
    one.step(batch(0))
    assert one.step(batch(0)) < other.step(batch(0))


@pytest.mark.parametrize("kind", ["names", "numpy", "list"])
def test_batches_come_as_tuples_lists_or_by_name(make, kind):
    x, labels = batch(0)
    given = {
        "names": {"labels": labels, "input": x},
        "numpy": (x.numpy(), labels.numpy()),
        "list": [x, labels],
    }[kind]
    trainer = make()
    assert trainer.input_names == ("input", "labels")
    assert trainer.step(given) == pytest.approx(make().step((x, labels)), rel=1e-6)


def test_an_iterable_is_trained_on_until_it_ends_or_the_steps_are_done(make):
    trainer = make()
    batches = iter([batch(step) for step in range(5)])
    assert len(trainer.fit(batches, 2, progress=False)) == 2
    assert len(trainer.fit(batches, progress=False)) == 3
    assert trainer.steps == 5


def test_progress_shows_steps_and_loss(make, capsys):
    losses = make().fit(batch, 3)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert f"{losses[-1]:.4f}" in shown


# --- checkpoints


@pytest.mark.parametrize("amp", [None, "bfloat16", "float16"])
def test_a_run_that_is_resumed_repeats_the_uninterrupted_one_bit_by_bit(make, tmp_path, amp):
    whole = make(amp=amp)
    losses = whole.fit(batch, 8, progress=False)
    path = tmp_path / "run.safetensors"
    first = make(amp=amp)
    assert first.fit(batch, 5, save_to=path, save_every=3, progress=False) == losses[:5]
    second = make(amp=amp)
    assert second.fit(batch, 8, save_to=path, save_every=3, progress=False) == losses[5:]
    expected = whole.state_dict()
    for name, tensor in second.state_dict()["tensors"].items():
        np.testing.assert_array_equal(tensor, expected["tensors"][name])
    assert second.steps == 8


def test_a_finished_run_that_is_called_again_does_nothing(make, tmp_path):
    path = tmp_path / "run.safetensors"
    make().fit(batch, 4, save_to=path, progress=False)
    written = path.read_bytes()
    again = make()
    assert again.fit(batch, 4, save_to=path, progress=False) == []
    assert (again.steps, path.read_bytes()) == (4, written)


def test_a_float32_checkpoint_goes_on_in_mixed_precision(make):
    exact = make()
    exact.fit(batch, 4, progress=False)
    low = make(amp="bfloat16")
    low.load_state_dict(exact.state_dict())
    assert low.step(batch(4)) == pytest.approx(exact.step(batch(4)), rel=0.01)


def test_a_state_dict_does_not_change_with_further_steps(make):
    trainer = make()
    state = trainer.state_dict()
    before = {name: tensor.copy() for name, tensor in state["tensors"].items()}
    trainer.step(batch(0))
    for name, tensor in state["tensors"].items():
        np.testing.assert_array_equal(tensor, before[name])


KILLED = """
import os, signal, sys
from tests.training.test_trainer import MSE, Adam, Trainer, autocast, batch, small_module

def batches(step):
    if step == 7 and sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return batch(step)

model = autocast.from_torch(small_module(), batch(0)[:1])
trainer = Trainer(model, MSE(), Adam(), learning_rate=0.01)
losses = trainer.fit(batches, 9, save_to=sys.argv[1], save_every=2, progress=False)
print(len(losses), losses[-1])
"""


def test_the_same_call_takes_up_where_a_killed_process_left_off(make, tmp_path):
    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "run.safetensors"), how]
        return subprocess.run(command, capture_output=True, text=True)

    assert run("die").returncode == -9
    done = run("live")
    count, last = done.stdout.split()
    assert int(count) == 3, done.stderr  # step 6, which was not saved, and 7 and 8
    assert float(last) == make().fit(batch, 9, progress=False)[-1]


def _without_a_tensor(state):
    del state["tensors"]["exp_avg/0.bias"]


def _with_another_shape(state):
    state["tensors"]["0.bias"] = np.zeros(9, "float32")


def _with_more(state):
    state["tensors"]["4.bias"] = np.zeros(9, "float32")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_a_tensor, "it lacks exp_avg/0.bias"),
        (_with_another_shape, r"0.bias is float32\[9\] and not float32\[7\]"),
        (_with_more, "it has 4.bias besides"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(make, spoil, message):
    trainer = make()
    trainer.step(batch(0))
    before = trainer.state_dict()
    state = make().state_dict()
    spoil(state)
    with pytest.raises(CheckpointError, match=message):
        trainer.load_state_dict(state)
    for name, tensor in trainer.state_dict()["tensors"].items():
        np.testing.assert_array_equal(tensor, before["tensors"][name])
    assert trainer.steps == 1


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"tensors": {}},
        {"tensors": {}, "facts": [1]},
        {"tensors": {}, "facts": {"optimizer": "Adam()"}},
        {"tensors": {}, "facts": {"optimizer": "Adam()", "steps": "three"}},
        torch.nn.Linear(2, 2).state_dict(),
    ],
    ids=["empty", "tensors", "other facts", "no steps", "steps in words", "torch"],
)
def test_what_is_no_state_is_an_error_that_says_what_one_is(make, state):
    with pytest.raises(CheckpointError, match="expected `tensors`, and `facts` with `steps` and `optimizer`"):
        make().load_state_dict(state)


def test_a_state_may_hold_torch_tensors(make):
    first, second = make(), make()
    first.step(batch(0))
    state = first.state_dict()
    second.load_state_dict(state | {"tensors": {name: torch.tensor(t) for name, t in state["tensors"].items()}})
    assert second.step(batch(1)) == first.step(batch(1))


def test_a_checkpoint_of_another_optimizer_is_refused(make):
    with pytest.raises(CheckpointError, match=r"written with SGD\(.*expected Adam\("):
        make().load_state_dict(make(optimizer=SGD()).state_dict())


# --- what training leads to


def test_evaluation_is_the_mean_loss_of_what_was_learnt_and_changes_nothing(make):
    trainer = make()
    trainer.fit(batch, 5, progress=False)
    module = small_module()
    trainer.to_torch(module)
    batches = [batch(step) for step in (100, 101)]
    expected = [torch.nn.functional.mse_loss(module(x), labels).item() for x, labels in batches]
    assert trainer.evaluate(batches) == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert trainer.evaluate(batches) == trainer.evaluate(batches)
    assert trainer.steps == 5


def test_the_trained_model_runs_and_keeps_its_parameters_while_training_goes_on(make):
    trainer = make()
    trainer.fit(batch, 5, progress=False)
    trained = trainer.trained()
    module = small_module()
    trainer.to_torch(module)
    x, _ = batch(100)
    expected = module(x).detach()
    trainer.step(batch(5))
    torch.testing.assert_close(trained(x), expected, rtol=1e-5, atol=1e-6)
    assert (autocast.amp.autocast(trained)(x) - expected).abs().max() < 0.02


def test_a_torch_module_of_other_shapes_is_refused(make):
    with pytest.raises(InputError, match=r"to_torch: Linear has no parameters \['0.weight'"):
        make().to_torch(torch.nn.Linear(2, 2))


# --- errors


def test_a_loss_that_is_not_finite_ends_the_run_with_the_checkpoint_before_it(make, tmp_path):
    path = tmp_path / "run.safetensors"

    def batches(step: int):
        x, labels = batch(step)
        return (x, labels * math.inf) if step == 3 else (x, labels)

    with pytest.raises(DivergedError, match=r"loss of step 4 is inf at a learning rate of 0.01.*clip_norm"):
        make().fit(batches, 8, save_to=path, save_every=1, progress=False)
    again = make()
    again.load(path)
    assert again.steps == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (batch(0)[0], r"a batch of type Tensor, expected \(input, labels\)"),
        (batch(0)[:1], r"a batch of 1 tensors, expected \(input, labels\)"),
        (None, r"a batch of type NoneType, expected"),
        ({"input": batch(0)[0]}, r"a batch of \['input'\], expected each of \['input', 'labels'\]"),
        ((batch(0)[0][:2], batch(0)[1]), r"input is float32\[2, 5\], expected float32\[6, 5\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error_that_names_the_tensor(make, given, message):
    trainer = make()
    with pytest.raises(InputError, match=message):
        trainer.step(given)
    with pytest.raises(InputError, match=message):
        trainer.evaluate([given])
    assert trainer.steps == 0


def test_a_function_of_batches_needs_to_know_when_to_stop(make):
    with pytest.raises(InputError, match="expected steps"):
        make().fit(batch, progress=False)


def test_evaluating_no_batches_is_an_error(make):
    with pytest.raises(InputError, match="got no batches"):
        make().evaluate([])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (3, "1 of 6 labels are no class, 3 the first, expected 0 to 2, or -100"),
        (-1, "1 of 6 labels are no class, -1 the first"),
        (10**12, "1 of 6 labels are no class, 1000000000000 the first"),
    ],
)
@pytest.mark.parametrize("loss", [CrossEntropy(), NLL()], ids=repr)
def test_a_label_that_is_no_class_is_an_error_and_changes_nothing(model, loss, label, message):
    trainer = Trainer(model, loss, SGD(momentum=0.9), learning_rate=0.1)
    x, labels = batch(0)[0], torch.arange(BATCH) % 3
    trainer.step((x, labels))
    before = trainer.state_dict()
    labels[4] = label
    for call in (trainer.step, lambda given: trainer.evaluate([given])):
        with pytest.raises(InputError, match=message):
            call((x, labels))
    assert trainer.steps == 1
    for name, tensor in trainer.state_dict()["tensors"].items():
        np.testing.assert_array_equal(tensor, before["tensors"][name])


def test_a_batch_in_which_no_label_counts_is_an_error(model):
    x, ignored = batch(0)[0], torch.full((BATCH,), -100)
    trainer = Trainer(model, CrossEntropy(), SGD(), learning_rate=0.1)
    with pytest.raises(InputError, match=r"all 6 labels are -100, .* Leave such a batch out"):
        trainer.step((x, ignored))
    summed = Trainer(model, CrossEntropy(reduction="sum"), SGD(), learning_rate=0.1)
    assert summed.step((x, ignored)) == 0


@pytest.mark.parametrize("rate", [None, "0.1", math.nan, math.inf, -0.1, lambda step: None])
def test_a_learning_rate_that_is_no_number_is_an_error(make, rate):
    trainer = make(learning_rate=rate)
    with pytest.raises(InputError, match=r"the learning rate of step 0 is .*expected a finite number"):
        trainer.step(batch(0))
    assert trainer.steps == 0


def test_saving_every_zero_steps_is_an_error(make, tmp_path):
    trainer = make()
    with pytest.raises(InputError, match="save_every is 0, expected a number of steps: 1 or more"):
        trainer.fit(batch, 3, save_to=tmp_path / "run.safetensors", save_every=0)
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": torch.nn.Linear(2, 2)}, r"got \(Linear, MSE, Adam\), expected a Model"),
        ({"loss": MSE}, r"got \(Model, <class .*MSE'>, Adam\)"),
        ({"optimizer": SGD}, r"got \(Model, MSE, <class .*SGD'>\)"),
        ({"recompute": "0"}, r"recompute is '0', expected a list of globs: \['0'\]"),
    ],
    ids=["model", "loss", "optimizer", "recompute"],
)
def test_a_trainer_of_something_else_is_an_error(model, given, message):
    with pytest.raises(TrainingError, match=message):
        Trainer(**{"model": model, "loss": MSE(), "optimizer": Adam(), "learning_rate": 0.1} | given)
