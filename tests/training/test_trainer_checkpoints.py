"""Training that stops goes on from its checkpoint as if it had not, and refuses what is not its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from autocast.errors import CheckpointError
from autocast.training.optimizers import SGD
from tests.training.trainers import batch, make_trainer


@pytest.mark.parametrize("amp", [None, "bfloat16", "float16"])
def test_a_run_that_is_resumed_repeats_the_uninterrupted_one_bit_by_bit(tmp_path, amp):
    whole = make_trainer(amp=amp)
    losses = whole.fit(batch, 8, progress=False)
    path = tmp_path / "run.safetensors"
    first = make_trainer(amp=amp)
    assert first.fit(batch, 5, save_to=path, save_every=3, progress=False) == losses[:5]
    second = make_trainer(amp=amp)
    assert second.fit(batch, 8, save_to=path, save_every=3, progress=False) == losses[5:]
    expected = whole.state_dict()
    for name, tensor in second.state_dict()["tensors"].items():
        np.testing.assert_array_equal(tensor, expected["tensors"][name])
    assert second.steps == 8


def test_a_finished_run_that_is_called_again_does_nothing(tmp_path):
    path = tmp_path / "run.safetensors"
    make_trainer().fit(batch, 4, save_to=path, progress=False)
    written = path.read_bytes()
    again = make_trainer()
    assert again.fit(batch, 4, save_to=path, progress=False) == []
    assert (again.steps, path.read_bytes()) == (4, written)


def test_a_float32_checkpoint_goes_on_in_mixed_precision():
    exact = make_trainer()
    exact.fit(batch, 4, progress=False)
    low = make_trainer(amp="bfloat16")
    low.load_state_dict(exact.state_dict())
    assert low.step(batch(4)) == pytest.approx(exact.step(batch(4)), rel=0.01)


def test_a_state_dict_does_not_change_with_further_steps():
    trainer = make_trainer()
    state = trainer.state_dict()
    before = {name: tensor.copy() for name, tensor in state["tensors"].items()}
    trainer.step(batch(0))
    for name, tensor in state["tensors"].items():
        np.testing.assert_array_equal(tensor, before[name])


KILLED = """
import os, signal, sys
from tests.training.trainers import batch, make_trainer

def batches(step):
    if step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch(step)

make_trainer().fit(batches, 9, save_to=sys.argv[1], save_every=2, progress=False)
"""


def test_the_same_call_takes_up_where_a_killed_process_left_off(tmp_path):
    path = tmp_path / "run.safetensors"
    died = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True)
    assert died.returncode == -9, died.stderr
    losses = make_trainer().fit(batch, 9, save_to=path, save_every=2, progress=False)
    assert len(losses) == 3  # step 6, which was not saved, and 7 and 8
    assert losses[-1] == make_trainer().fit(batch, 9, progress=False)[-1]


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
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(spoil, message):
    trainer = make_trainer()
    trainer.step(batch(0))
    before = trainer.state_dict()
    state = make_trainer().state_dict()
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
def test_what_is_no_state_is_an_error_that_says_what_one_is(state):
    with pytest.raises(CheckpointError, match="expected `tensors`, and `facts` with `steps` and `optimizer`"):
        make_trainer().load_state_dict(state)


def test_a_state_may_hold_torch_tensors():
    first, second = make_trainer(), make_trainer()
    first.step(batch(0))
    state = first.state_dict()
    second.load_state_dict(state | {"tensors": {name: torch.tensor(t) for name, t in state["tensors"].items()}})
    assert second.step(batch(1)) == first.step(batch(1))


def test_a_checkpoint_of_another_optimizer_is_refused():
    with pytest.raises(CheckpointError, match=r"written with SGD\(.*expected Adam\("):
        make_trainer().load_state_dict(make_trainer(optimizer=SGD()).state_dict())
