"""Two processes train as one would with both their batches; what goes wrong in one is an error in both."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import MSELoss

from autocast import vm
from autocast.errors import TrainingError
from autocast.training import Trainer
from autocast.training.losses import MSE
from autocast.training.optimizers import SGD, AdamW
from autocast.training.parallel.options import DataParallel
from autocast.training.step import training_step
from tests.training.parallel import scenarios
from tests.training.parallel.ranks import cache_of, run

RANKS = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks write."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(autouse=True)
def _ranks_compile_for_this_process_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports, and kernels: those of steps without the means over ranks are the same."""
    for name, value in cache_of(directory).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def found(directory: Path) -> list[Any]:
    """What each of two ranks found in all scenarios."""
    return run(directory, "scenarios", count=RANKS)


@pytest.mark.parametrize("way", scenarios.WAYS)
def test_two_ranks_have_the_losses_of_one_with_both_batches(found: list[Any], way: str) -> None:
    first, second = (each["everywhere"][way] for each in found)
    assert first == second
    # Rounded to bfloat16, activations may fall on the other side of half a unit in the last place: 2^-8 of a loss.
    tolerance = 2**-8 if "bfloat16" in way else 1e-5
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Policy: low_ops has 'collective")  # one sends nothing
        alone = scenarios.losses(way, 0, 1)
    np.testing.assert_allclose(first, alone, rtol=tolerance)


@pytest.mark.parametrize("way", scenarios.NORMS)
def test_two_ranks_normalize_by_the_statistics_of_both_batches(found: list[Any], way: str) -> None:
    first, second = (each["synchronized"][way] for each in found)
    assert first == second
    for name, value in scenarios.normalized(way, 0, 1).items():
        rtol = 2**-7 if way == "bfloat16" else 1e-5
        np.testing.assert_allclose(first[name], value, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("way", scenarios.LOOKUPS)
def test_tables_learn_from_the_rows_that_both_ranks_looked_up(found: list[Any], way: str) -> None:
    first, second = (each["by_rows"][way] for each in found)
    assert first == second
    assert first.pop("sent") == {"accumulated": 0, "zero": 5}.get(way, 4), "rows and numbers of two tables of three"
    alone = scenarios.looked_up(way, 0, 1)
    assert alone.pop("sent") == 0
    for name, value in alone.items():
        rtol = 2**-7 if way == "bfloat16" else 2e-5
        np.testing.assert_allclose(first[name], value, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
def test_each_rank_weighs_by_its_rows_in_the_statistics_of_both_batches(found: list[Any], device: str) -> None:
    module = scenarios.network(norm=True).train()
    x, labels = scenarios.batch(0)
    losses = map(MSELoss(), module(x).split(scenarios.UNEVEN), labels.split(scenarios.UNEVEN))
    (sum(losses) / RANKS).backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    for rank in range(RANKS):
        state = found[rank]["uneven"][device]
        for name, value in module.state_dict().items():
            if name in state:
                np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        assert {"0.weight", "1.running_mean", "1.running_var"} <= set(state)


def test_what_is_learned_stays_the_same_on_all_ranks_bit_for_bit(found: list[Any]) -> None:
    first, second = (each["state"] for each in found)
    assert first == second
    assert {"1.running_mean", "0.weight", "exp_avg/0.weight"} <= set(first)


def test_fit_divides_batches_among_ranks_and_leaves_those_that_are_too_few_for_all(found: list[Any]) -> None:
    first, second = (each["fitted"] for each in found)
    assert first == second
    assert first["list"] == first["iterator"] == first["function"] == first["own"] == first["epochs"][:3]
    assert len(first["list"]) == 3 and len(first["epochs"]) == 6


def test_ranks_that_shuffle_take_what_the_others_leave(found: list[Any]) -> None:
    epochs = list(zip(*(each["shuffled"] for each in found), strict=True))
    for first, second in epochs:
        assert len(first) == len(second) == 10
        assert sorted(first + second) == list(range(20))
    assert epochs[0] != epochs[1]


def test_evaluation_is_of_all_batches_and_the_same_everywhere(found: list[Any]) -> None:
    trainer = Trainer(scenarios.model(6), MSE(), SGD(), learning_rate=0.05)
    batches = [scenarios.batch(step, 6) for step in range(7)]
    alone = trainer.evaluate(batches, {"rows": lambda outputs, labels: float(labels[0, 0])})
    for each in found:
        assert each["fitted"]["evaluated"] == pytest.approx(alone, rel=1e-5)


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_ended(found: list[Any]) -> None:
    for each in found:
        assert each["resumed"]["resumed"] == each["resumed"]["whole"] == each["resumed"]["again"]
        assert each["resumed"]["exists"], "rank 0 has written before others go on"


def test_a_divided_state_is_trained_like_a_whole_one_and_each_rank_has_its_share(found: list[Any]) -> None:
    first, second = (each["divided"] for each in found)
    for each in (first, second):
        np.testing.assert_allclose(each["first"], each["expected"][:3], rtol=1e-6)
        np.testing.assert_allclose(each["rest"], [each["expected"][3:]] * 2, rtol=1e-5)
        assert each["shares"]["exp_avg/0.weight"] == [20] and each["shares"]["exp_avg_sq/3.bias"] == [4]
        whole, divided = each["MiB"]  # of parameters and two slots: half of each slot
        assert divided == pytest.approx(whole * 2 / 3, rel=0.1)
    shared = first["parameters"].keys() - {"random_state"}
    assert {name: first["parameters"][name] for name in shared} == {n: second["parameters"][n] for n in shared}


def test_a_checkpoint_of_a_divided_state_loads_into_one_process(found: list[Any], directory: Path) -> None:
    trainer = Trainer(scenarios.model(6, dropout=0.5), MSE(), AdamW(), learning_rate=0.05)
    trainer.load(directory / "divided.safetensors")
    assert trainer.steps == 3
    assert trainer.executable.state["exp_avg/0.weight"].shape == (8, 5)


def test_ranks_drop_different_elements_and_checkpoints_have_the_seed_of_rank_0(found: list[Any]) -> None:
    (first, saved), (second, saved_by_second) = (each["dropped"] for each in found)
    assert first != second
    assert first == saved == saved_by_second


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("model", "RankError: Trainer: the 2 processes were not started alike: model: rank 0 has .*rank 1"),
        ("rows", "RankError: Trainer: the 2 processes were not started alike: model: rank 0 has .*rank 1"),
        ("optimizer", "RankError: Trainer: .* options: rank 0 has .*momentum=0.0.* rank 1 .*momentum=0.5"),
        ("zero", "RankError: Trainer: .* options: rank 0 has .*zero=0.* rank 1 .*zero=1"),
        (
            "zero on torch",
            "TrainingError: Trainer: zero=1 on the device 'torch:cpu', expected 'cpu': .* Leave zero out",
        ),
        ("zero low", "TrainingError: Trainer: zero=1 and a policy with fp32_params=False, expected masters in float32"),
        ("few", "InputError: Trainer.fit: got 1 batches for 2 processes, expected one for each at least"),
        ("afterwards", "no error"),
    ],
)
def test_what_does_not_fit_together_is_an_error_on_all_ranks(found: list[Any], what: str, message: str) -> None:
    for each in found:
        assert re.match(message, each["refused"][what])


@pytest.mark.parametrize(("what", "work"), [("checkpoint", "read"), ("unwritable", "write")])
def test_a_checkpoint_that_rank_0_cannot_use_is_an_error_on_all_ranks(found: list[Any], what: str, work: str) -> None:
    first, second = (each["refused"][what] for each in found)
    assert first != "no error" and "rank 0 could not" not in first
    assert f"rank 1 of 2: rank 0 could not {work} the checkpoint" in second


def test_a_rank_that_does_not_come_is_an_error_of_the_others_within_the_timeout(found: list[Any]) -> None:
    (waited, seconds), (late, _) = (each["missed"] for each in found)
    assert re.match(r"rank 0 of 2: the mean over ranks failed: (Timed out|Application timeout) ", waited)
    assert seconds < 2 * scenarios.TIMEOUT + 3
    assert late.startswith("rank 1 of 2: the mean over ranks failed: ")
    assert "Start all of them again, from a checkpoint" in late


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
def test_a_step_with_means_runs_in_one_process(device: str) -> None:
    step = training_step(scenarios.model(6), MSE(), SGD(), parallel="data")
    executable = vm.compile(step, device, mode=None if device == "cpu" else "eager")
    trainer = Trainer(scenarios.model(6), MSE(), SGD(), learning_rate=0.05)
    for number in range(3):
        batch = scenarios.batch(number, 6)
        loss = executable(*batch, torch.tensor(0.05))
        assert float(loss) == pytest.approx(trainer.step(batch), rel=1e-5)


def test_one_process_is_no_parallel_training() -> None:
    plain = Trainer(scenarios.model(6), MSE(), SGD(), learning_rate=0.05)
    for parallel in ("none", "data", DataParallel(bucket_mib=1)):
        trainer = Trainer(scenarios.model(6), MSE(), SGD(), learning_rate=0.05, parallel=parallel)
        assert trainer.ranks.count == 1
        assert trainer.step_model.mod.script() == plain.step_model.mod.script()


@pytest.mark.parametrize("parallel", ["model", 2, True, DataParallel])
def test_another_kind_of_parallel_training_is_refused(parallel: Any) -> None:
    with pytest.raises(TrainingError, match=r"parallel is .*, expected 'data', 'none', DataParallel"):
        Trainer(scenarios.model(6), MSE(), SGD(), learning_rate=0.05, parallel=parallel)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(TrainingError, match="bucket_mib is 0, expected MiB above 0"):
        DataParallel(bucket_mib=0)
    with pytest.raises(TrainingError, match="sync_batch_norm is 1, expected True or False"):
        DataParallel(sync_batch_norm=1)  # type: ignore[arg-type]
    for zero in (2, True, -1, "1"):
        with pytest.raises(TrainingError, match=r"zero is .*, expected 0 or 1; gradients and parameters are not"):
            DataParallel(zero=zero)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="got the option 'bucket_cap_mb'; it is bucket_mib"):
        DataParallel(bucket_cap_mb=25)  # type: ignore[call-arg]
