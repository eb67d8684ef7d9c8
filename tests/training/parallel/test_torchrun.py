"""`train.py` of docs/many_machines.md, as it stands: under torchrun, and with a process that dies in the middle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import blocks
from tests.training.parallel.faults import REPOSITORY, torchrun

#: Runs train.py; the first time, rank 1 dies before a step.
DYING = """
import os
import runpy

from autocast.training import Trainer

step = Trainer.step


def fails(trainer, batch):
    if trainer.steps == 30 and trainer.ranks.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)
    return step(trainer, batch)


Trainer.step = fails
runpy.run_path("train.py", run_name="__main__")
"""


def train(directory: Path, script: str, *options: str) -> str:
    """What two processes print that run `script` in `directory`."""
    (program, *_) = blocks((REPOSITORY / "docs" / "many_machines.md").read_text())
    directory.mkdir()
    (directory / "train.py").write_text(program.text)
    (directory / "dying.py").write_text(DYING)
    return torchrun(directory, *options, script)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that nothing has disturbed, and what it printed."""
    directory = tmp_path_factory.mktemp("torchrun") / "whole"
    return directory, train(directory, "train.py")


def test_the_program_of_the_page_runs_in_two_processes(whole: tuple[Path, str]) -> None:
    directory, printed = whole
    assert re.fullmatch(r"2 processes, 60 steps: \d\.\d{6}, evaluated \d\.\d{6}\n", printed)
    assert (directory / "run.safetensors").exists()


def test_after_a_process_has_died_torchrun_goes_on_from_the_checkpoint_to_the_same_parameters(
    whole: tuple[Path, str],
) -> None:
    directory, printed = whole
    disturbed = directory.parent / "disturbed"
    again = train(disturbed, "dying.py", "--max-restarts=1")
    assert again == printed.replace("60 steps", "40 steps")
    assert (disturbed / "run.safetensors").read_bytes() == (directory / "run.safetensors").read_bytes()
