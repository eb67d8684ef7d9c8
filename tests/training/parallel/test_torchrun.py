"""`train.py` of docs/many_machines.md, as it stands: under torchrun, and with a process that dies in the middle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import blocks
from tests.training.parallel.faults import REPOSITORY, torchrun

#: Runs train.py in one folder, and then in another, where rank 1 dies before a step; started again, in that alone. So
#: processes are started twice: that is what takes the time here.
DYING = """
import atexit
import os
import runpy
from pathlib import Path

import torch.distributed as dist

# What is registered first is called last.
atexit.register(lambda: Path(f"{os.environ['RANK']}.left").write_text(str(not dist.is_initialized())))

from autocast.training import Trainer

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if first:
    os.chdir("whole")
    runpy.run_path("../train.py", run_name="__main__")
    os.chdir("..")
step = Trainer.step


def fails(trainer, *batches):
    if first and trainer.steps == 30 and trainer.ranks.rank == 1:
        os._exit(1)
    return step(trainer, *batches)


Trainer.step = fails
os.chdir("disturbed")
runpy.run_path("../train.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of both runs, and the lines that they printed."""
    (program, *_) = blocks((REPOSITORY / "docs" / "many_machines.md").read_text())
    directory = tmp_path_factory.mktemp("torchrun") / "runs"
    for folder in ("whole", "disturbed"):
        (directory / folder).mkdir(parents=True)
    (directory / "train.py").write_text(program.text)
    (directory / "dying.py").write_text(DYING)
    return directory, torchrun(directory, "--max-restarts=1", "--monitor-interval=0.1", "dying.py").splitlines()


def test_the_program_of_the_page_runs_in_two_processes(run: tuple[Path, list[str]]) -> None:
    directory, (printed, *_) = run
    assert re.fullmatch(r"2 processes, 60 steps: \d\.\d{6}, evaluated \d\.\d{6}", printed)
    assert (directory / "whole" / "run.safetensors").exists()


def test_after_a_process_has_died_torchrun_goes_on_from_the_checkpoint_to_the_same_parameters(
    run: tuple[Path, list[str]],
) -> None:
    directory, (printed, *again) = run
    assert again == [printed.replace("60 steps", "40 steps")]
    whole, disturbed = ((directory / name / "run.safetensors").read_bytes() for name in ("whole", "disturbed"))
    assert whole == disturbed


def test_the_process_group_is_left_before_the_interpreter_ends(run: tuple[Path, list[str]]) -> None:
    """gloo's threads let go of tensors when they like: without Python, that aborts one in four processes."""
    directory, _ = run
    assert [(directory / "disturbed" / f"{rank}.left").read_text() for rank in range(2)] == ["True", "True"]
