"""Several batches for one update: as one batch with all of their rows, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autocast
from autocast import get_peak_memory
from autocast.errors import EndOfDataWarning, InputError, TrainingError
from autocast.model import Model
from autocast.policy import Policy
from autocast.training import LAMB, MSE, SGD, Adam, AdamW, Trainer, training_step
from autocast.training.accumulation import accumulation_step, is_accumulator
from autocast.training.optimizers import Optimizer
from tests.training.parallel.scenarios import batch, model

ROWS, COUNT, STEPS = 3, 4, 4

#: Optimizers, and how their steps are made.
WAYS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "momentum": (SGD(momentum=0.9, weight_decay=0.1), {"clip_norm": 0.05}),
    "Adam": (Adam(), {"recompute": ["0", "1"]}),
    "AdamW": (AdamW(), {"loss_scaling": 1024.0, "clip_norm": 0.05}),
    "LAMB": (LAMB(), {"loss_scaling": autocast.training.DynamicLossScaling()}),
    "torch": (AdamW(), {"device": "torch:cpu", "mode": "eager"}),
}


def parts(step: int) -> list[tuple[torch.Tensor, ...]]:
    """The batch of a step in as many as are accumulated."""
    return list(zip(*(tensor.split(ROWS) for tensor in batch(step, ROWS * COUNT)), strict=True))


def trainer(rows: int, optimizer: Optimizer | None = None, **options: Any) -> Trainer:
    """A new trainer of the same parameters."""
    return Trainer(model(rows), MSE(), optimizer or SGD(momentum=0.9), learning_rate=0.05, **options)


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_one_batch_with_all_rows(way: str) -> None:
    optimizer, options = WAYS[way]
    whole, divided = (trainer(ROWS * n, optimizer, accumulate=COUNT // n, **options) for n in (COUNT, 1))
    expected = [whole.step(batch(step, ROWS * COUNT)) for step in range(STEPS)]
    np.testing.assert_allclose([divided.step(*parts(step)) for step in range(STEPS)], expected, rtol=1e-5)
    assert divided.steps == STEPS


@pytest.mark.parametrize("amp", ["bfloat16", Policy(fp32_params=False, weight_gradients="bf16sr")])
def test_both_programs_of_mixed_precision_read_the_same_copies_of_weights(amp: Any) -> None:
    exact, low = trainer(ROWS, AdamW(), accumulate=COUNT), trainer(ROWS, AdamW(), accumulate=COUNT, amp=amp)
    expected = [exact.step(*parts(step)) for step in range(STEPS)]
    np.testing.assert_allclose([low.step(*parts(step)) for step in range(STEPS)], expected, rtol=0.02)
    step, adding = low.executable, low.accumulation
    assert adding is not None
    names = [copy.name for copy in step.program.copies]
    assert [copy.name for copy in adding.program.copies] == names and (names or low.amp.fp32_params is False)
    for name, value in step.state.items():
        assert value.same_as(adding.state[name])


def test_fit_takes_batches_that_follow_each_other_and_leaves_those_that_are_too_few() -> None:
    small = [batch for step in range(STEPS) for batch in parts(step)]
    expected = trainer(ROWS * COUNT).fit(lambda step: batch(step, ROWS * COUNT), STEPS, progress=False)
    for batches, options in (
        ([*small, small[0]], {}),
        (iter([*small, small[0]]), {}),
        (small[: 2 * COUNT], {"epochs": 1}),
        (lambda number: small[number], {"steps": STEPS}),
    ):
        losses = trainer(ROWS, accumulate=COUNT).fit(batches, progress=False, **options)
        np.testing.assert_allclose(losses, expected[: len(losses)], rtol=1e-5)
        assert len(losses) == (2 if "epochs" in options else STEPS)


def test_a_run_goes_on_with_its_epochs_and_with_another_number_of_batches() -> None:
    small = [batch for step in range(STEPS) for batch in parts(step)]
    whole = trainer(ROWS, accumulate=COUNT)
    expected = whole.fit(small, epochs=2, progress=False)
    begun, rest = trainer(ROWS, accumulate=COUNT), trainer(ROWS, accumulate=COUNT)
    first = begun.fit(small[: COUNT * 3], progress=False)
    saved = begun.state_dict()
    assert not any(map(is_accumulator, saved["tensors"]))
    rest.load_state_dict(saved)
    assert first + rest.fit(small, epochs=2, progress=False) == expected
    other = trainer(ROWS)
    other.load_state_dict(saved)
    assert other.fit(small, steps=5, progress=False)


def test_statistics_and_dropout_go_on_with_each_batch() -> None:
    options = {"norm": True, "dropout": 0.5}
    divided = Trainer(model(ROWS, **options), MSE(), SGD(), learning_rate=0.05, accumulate=2)
    single = Trainer(model(ROWS, **options), MSE(), SGD(), learning_rate=0.0)
    first, second, *_ = parts(0)
    divided.step(first, second)
    for each in (first, second):
        single.step(each)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked", "random_state"):
        one, other = (each.executable.state[name].numpy() for each in (divided, single))
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)


def test_a_gradient_that_is_not_finite_skips_the_step_of_all_its_batches() -> None:
    skipping = trainer(ROWS, accumulate=2, loss_scaling=1.0)
    good, other, bad, *_ = parts(0)
    bad[0][0, 0] = float("inf")
    before = skipping.state_dict()["tensors"]
    skipping.step(bad, good)
    after = skipping.state_dict()["tensors"]
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)
    skipping.step(other, good)
    assert np.isfinite(skipping.step(good, other))
    assert int(skipping.state_dict()["tensors"]["optimizer_step"]) == 2


def test_batches_that_do_not_fit_change_nothing() -> None:
    divided, alike = trainer(ROWS, accumulate=2), trainer(ROWS, accumulate=2)
    first, second, *_ = parts(0)
    wrong = tuple(tensor[:1] for tensor in second)
    for batches, message in (
        ((first, wrong), r"main: input .* is float32\[1, 5\], expected"),
        ((first,), r"Trainer.step: got 1 batches and accumulate=2, expected that many: step\(batch, another\)"),
        ((first, second, first), "Trainer.step: got 3 batches and accumulate=2"),
        ((first, second[:1]), "got a batch of 1 tensor, expected"),
    ):
        with pytest.raises(InputError, match=message):
            divided.step(*batches)
    with pytest.raises(InputError, match=r"Trainer.fit: got 1 batches and accumulate=2, expected that many"):
        divided.fit([first])
    with pytest.warns(EndOfDataWarning):
        assert divided.fit([first, second], steps=2, progress=False) == [alike.step(first, second)]


def test_a_step_that_is_interrupted_leaves_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    divided, alike = trainer(ROWS, accumulate=2), trainer(ROWS, accumulate=2)
    first, second, *_ = parts(0)
    adding = divided.accumulation
    run = adding.run  # type: ignore[union-attr]

    def interrupted(arguments: Any) -> None:
        run(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(adding, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        divided.step(first, second)
    monkeypatch.undo()
    assert divided.step(first, second) == alike.step(first, second)


def test_a_larger_batch_takes_the_memory_of_a_small_one() -> None:
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(64, 64), *[torch.nn.GELU(), torch.nn.Linear(64, 64)] * 3)

    def made(rows: int, accumulate: int) -> Trainer:
        imported: Model = autocast.from_torch(wide, (torch.zeros(rows, 64),))
        return Trainer(imported, MSE(), SGD(momentum=0.9), learning_rate=0.1, accumulate=accumulate)

    inputs = [np.zeros((1024, 64), "float32")] * 2 + [np.zeros((), "float32")]
    whole, small = (get_peak_memory(made(1024, n).executable, "cpu", inputs) for n in (1, 2))
    divided = made(128, 8)
    few = [np.zeros((128, 64), "float32")] * 2 + [np.zeros((), "float32")]
    peaks = [get_peak_memory(program, "cpu", few) for program in (divided.executable, divided.accumulation)]
    assert max(peaks) < whole / 3 < small
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("accumulate", [0, True, 2.0, -1, "2"])
def test_what_is_no_number_of_batches_is_refused(accumulate: Any) -> None:
    with pytest.raises(TrainingError, match=r"accumulate is .*, expected a count of batches: 1 or more"):
        trainer(ROWS, accumulate=accumulate)


def test_the_names_of_others_say_which_it_is() -> None:
    with pytest.raises(TrainingError, match=r"gradient_accumulation_steps.*it is accumulate"):
        trainer(ROWS, gradient_accumulation_steps=2)


def test_a_step_that_accumulates_nothing_has_no_other_program() -> None:
    with pytest.raises(TrainingError, match="the model has no accumulators, expected what training_step"):
        accumulation_step(training_step(model(ROWS), MSE(), SGD()))
    assert trainer(ROWS).accumulation is None
