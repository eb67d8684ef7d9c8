"""Starts processes that train together, and gathers what each of them found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

REPOSITORY = Path(__file__).resolve().parents[3]


def run(directory: Path, program: str, *arguments: str, count: int = 2, seconds: float = 240) -> list[Any]:
    """What `tests.training.parallel.PROGRAM` writes on each of `count` ranks; all end, without an error."""
    processes = start(directory, program, *arguments, count=count)
    outputs = [process.communicate(timeout=seconds) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(count)]


def start(directory: Path, program: str, *arguments: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """The processes, which find each other by a file in `directory`, a new folder."""
    command = [sys.executable, "-m", f"tests.training.parallel.{program}"]
    return [
        subprocess.Popen(
            [*command, str(rank), str(count), str(directory), *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **cache_of(directory), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def cache_of(directory: Path) -> dict[str, str]:
    """The settings of a cache of their own: one rank compiles for all."""
    return {"AUTOCAST_CACHE": "on", "AUTOCAST_CACHE_DIR": str(directory / "cache")}


def set_timeout(seconds: float) -> None:
    """How long ranks wait for each other from now on."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def connect(argv: list[str]) -> tuple[int, int, Path]:
    """Join the other ranks; returns the rank of this process, their number, and the folder for what they find."""
    rank, count, directory = int(argv[1]), int(argv[2]), Path(argv[3])
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/ranks", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    return rank, count, directory
