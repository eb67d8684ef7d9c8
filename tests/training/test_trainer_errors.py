"""What a trainer cannot train on is an error that says what to do, and changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from autocast.errors import DivergedError, InputError, TrainingError
from autocast.training.losses import MSE, NLL, CrossEntropy
from autocast.training.optimizers import SGD, Adam
from autocast.training.trainer import Trainer
from tests.training.trainers import BATCH, batch, make_trainer, small_model


def test_a_loss_that_is_not_finite_ends_the_run_with_the_checkpoint_before_it(tmp_path):
    path = tmp_path / "run.safetensors"

    def batches(step: int):
        x, labels = batch(step)
        return (x, labels * math.inf) if step == 3 else (x, labels)

    with pytest.raises(DivergedError, match=r"loss of step 4 is inf at a learning rate of 0.01.*clip_norm"):
        make_trainer().fit(batches, 8, save_to=path, save_every=1, progress=False)
    again = make_trainer()
    again.load(path)
    assert again.steps == 3


@pytest.mark.parametrize(("options", "unharmed"), [({}, False), ({"loss_scaling": 1.0}, True)])
def test_a_batch_that_is_not_finite_ends_in_the_parameters_unless_the_loss_is_scaled(options, unharmed):
    trainer = make_trainer(**options)
    x, labels = batch(0)
    assert math.isnan(trainer.step((x * math.nan, labels)))
    assert math.isfinite(trainer.step((x, labels))) is unharmed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (batch(0)[0], r"of type Tensor, expected \(input: float32\[6, 5\], labels: float32\[6, 3\]\), in this order"),
        (batch(0)[:1], r"a batch of 1 tensor, expected \(input: float32\[6, 5\], labels.* tuples of them, or dict"),
        (None, r"a batch of type NoneType, expected"),
        ({"input": batch(0)[0]}, r"a batch of \['input'\], expected \(input: .*\), each exactly once"),
        ((batch(0)[0][:2], batch(0)[1]), r"input is float32\[2, 5\], expected float32\[6, 5\]"),
        ((batch(0)[0], batch(0)[1].bfloat16()), r"labels is bfloat16.* expected float32.*labels.to\(torch.float32\)"),
        ((batch(0)[0], 3), "input labels is a int, expected a torch tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error_that_names_the_tensor(given, message):
    trainer = make_trainer()
    with pytest.raises(InputError, match=message):
        trainer.step(given)
    with pytest.raises(InputError, match=message):
        trainer.evaluate([given])
    assert trainer.steps == 0


def test_a_function_of_batches_needs_to_know_when_to_stop():
    with pytest.raises(InputError, match="expected steps"):
        make_trainer().fit(batch, progress=False)


@pytest.mark.parametrize("batches", [batch, [batch(0)]], ids=["function", "list"])
def test_steps_that_are_done_already_are_an_error_that_says_how_many_are(batches):
    trainer = make_trainer()
    trainer.fit(batch, 3, progress=False)
    with pytest.raises(
        InputError, match=r"steps is 3, which counts all steps, and 3 are done already.*steps=6 does 3 more"
    ):
        trainer.fit(batches, 3, progress=False)
    assert len(trainer.fit(batch, 6, progress=False)) == 3


def test_evaluating_no_batches_is_an_error():
    with pytest.raises(InputError, match="got no batches"):
        make_trainer().evaluate([])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (3, "1 of 6 labels are no class, 3 the first, expected labels: int64.6. from 0 to 2, or -100"),
        (-1, "1 of 6 labels are no class, -1 the first"),
        (10**12, "1 of 6 labels are no class, 1000000000000 the first"),
    ],
)
@pytest.mark.parametrize("loss", [CrossEntropy(), NLL()], ids=repr)
def test_a_label_that_is_no_class_is_an_error_and_changes_nothing(loss, label, message):
    trainer = Trainer(small_model(), loss, SGD(momentum=0.9), learning_rate=0.1)
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


def test_a_batch_in_which_no_label_counts_is_an_error():
    x, ignored = batch(0)[0], torch.full((BATCH,), -100)
    trainer = Trainer(small_model(), CrossEntropy(), SGD(), learning_rate=0.1)
    with pytest.raises(InputError, match=r"all 6 labels are -100, .* Leave such a batch out"):
        trainer.step((x, ignored))
    summed = Trainer(small_model(), CrossEntropy(reduction="sum"), SGD(), learning_rate=0.1)
    assert summed.step((x, ignored)) == 0


@pytest.mark.parametrize("rate", [None, "0.1", math.nan, math.inf, -0.1, lambda step: None])
def test_a_learning_rate_that_is_no_number_is_an_error(rate):
    with pytest.raises(InputError, match=r"the learning rate of step 0 is .*expected a finite number"):
        make_trainer(learning_rate=rate).step(batch(0))


def test_one_hot_labels_are_answered_by_the_loss_that_takes_them():
    trainer = Trainer(small_model(), CrossEntropy(), SGD(), learning_rate=0.1)
    one_hot = torch.eye(3)[torch.arange(BATCH) % 3]
    with pytest.raises(InputError, match=r"labels are float32\[6, 3\], expected .*kind='probabilities'.*argmax\(-1\)"):
        trainer.step((batch(0)[0], one_hot))


def test_saving_every_zero_steps_is_an_error(tmp_path):
    trainer = make_trainer()
    with pytest.raises(InputError, match="save_every is 0, expected a number of steps: 1 or more"):
        trainer.fit(batch, 3, save_to=tmp_path / "run.safetensors", save_every=0)
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": torch.nn.Linear(2, 2)}, r"got a torch\.nn\.modules\.linear\.Linear, expected a Model"),
        ({"loss": MSE}, r"got the class autocast\..*\.MSE, expected a loss"),
        ({"optimizer": SGD}, r"got the class autocast\..*\.SGD, expected an optimizer"),
        (
            {"optimizer": torch.optim.SGD([torch.ones(1)], 0.1)},
            r"got a torch\.optim\.sgd\.SGD, expected an optimizer",
        ),
        ({"recompute": "0"}, r"recompute is '0', expected a list of globs"),
        ({"policy": "mp1"}, "Trainer: got the option 'policy'; it is amp. Expected name=value, of learning_rate, amp"),
        ({"clip": 1.0}, "Trainer: got the option 'clip'; nearest: clip_norm"),
    ],
    ids=["model", "loss", "optimizer", "torch's optimizer", "recompute", "policy", "clip"],
)
def test_a_trainer_of_something_else_is_an_error(given, message):
    with pytest.raises(TrainingError, match=message):
        Trainer(**{"model": small_model(), "loss": MSE(), "optimizer": Adam(), "learning_rate": 0.1} | given)
