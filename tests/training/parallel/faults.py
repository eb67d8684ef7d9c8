"""Kill ranks while they train: `python -m tests.training.parallel.faults --kills 50` kills as many as one likes.

torchrun starts both ranks again each time, and in the end the checkpoint has to be that of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from autocast.training import Trainer

REPOSITORY = Path(__file__).resolve().parents[3]

#: Seconds between the first step of a start and the kill.
_SOON, _LATE = 0.01, 0.15

#: Steps for each kill: a start makes some dozens before it is killed, and loses those since the last checkpoint.
_STEPS, _SAVE_EVERY = 40, 5


def torchrun(directory: Path, *arguments: str, seconds: float = 240) -> str:
    """What two processes print that torchrun starts with these arguments in a new folder, with a cache beside it."""
    directory.mkdir(exist_ok=True)
    cache = {"AUTOCAST_CACHE": "on", "AUTOCAST_CACHE_DIR": str(directory.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments],
        cwd=directory,
        env={**os.environ, **cache, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def killed(kills: int, folder: Path) -> bool:
    """Whether a run of which `kills` ranks are killed comes to the checkpoint of one that is not disturbed."""
    checkpoints = []
    for name, count in (("whole", 0), ("killed", kills)):
        here = ["-m", __name__ if __name__ != "__main__" else "tests.training.parallel.faults", "--train"]
        options = [f"--max-restarts={count}", "--monitor-interval=0.1"]
        torchrun(folder / name, *options, *here, str(kills * _STEPS), "--kills", str(count), seconds=60 * (count + 4))
        checkpoints.append((folder / name / "run.safetensors").read_bytes())
    return checkpoints[0] == checkpoints[1]


def train(steps: int, kills: int) -> None:
    """Train in this process, one of several; one of them kills itself in each of the first `kills` starts."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    generator = random.Random(attempt)
    victim, delay = generator.randrange(2), generator.uniform(_SOON, _LATE)

    def kill() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(_progress: object, started: list[bool] = []) -> None:  # noqa: B006  (once in a process)
        if not started and attempt < kills and int(os.environ["RANK"]) == victim:
            started.append(True)
            threading.Thread(target=kill, daemon=True).start()

    fit = Trainer.fit

    def longer(trainer: Trainer, batches: object, **_options: object) -> list[float]:
        return fit(
            trainer,
            batches,  # type: ignore[arg-type]
            steps=steps,
            save_to="run.safetensors",
            save_every=_SAVE_EVERY,
            progress=False,
            callbacks=[begin],
        )

    Trainer.fit = longer  # type: ignore[method-assign, assignment]
    from tests.test_docs import blocks

    (program, *_) = blocks((REPOSITORY / "docs" / "many_machines.md").read_text())
    file = Path(f"train_{os.environ['RANK']}.py")
    file.write_text(program.text)
    runpy.run_path(str(file), run_name="__main__")


def main() -> None:
    """Kill, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--train", type=int, help="steps to train, as one of the processes that torchrun starts")
    options = parser.parse_args()
    if options.train is not None:
        train(options.train, options.kills)
        return
    with tempfile.TemporaryDirectory() as folder:
        assert killed(options.kills, Path(folder)), "the checkpoint is another than that of the run nobody disturbed"
    print(f"{options.kills} ranks killed: the checkpoint is that of a run that nobody disturbed, to the last bit")


if __name__ == "__main__":
    main()
