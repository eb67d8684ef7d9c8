"""Samples are checked in processes of their own, so that what kills one is counted, and nothing else is lost."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from tests.opinfo.check import Status, Verdict, check
from tests.opinfo.gradients import check_gradients, check_training
from tests.opinfo.mixed import check_mixed
from tests.opinfo.modules import Module, modules
from tests.opinfo.onnx_files import check_onnx
from tests.opinfo.samples import Operator, Sample, operators

#: Seconds after which a sample counts as crashed.
PATIENCE = 300

#: What may be asked of a sample.
CHECKS: dict[str, Callable[[Sample], Verdict]] = {
    "results": check,
    "gradients": check_gradients,
    "training": check_training,
    "mixed": check_mixed,
    "onnx": check_onnx,
}


class Task(NamedTuple):
    """Some samples of an operator or a module, and by which of `CHECKS` they are judged: all, or so many of the first
    and the empty ones, from number `start` on; those of operators may be of another dtype."""

    name: str
    samples: int | None
    start: int = 0
    check: str = "results"
    dtype: str | None = None


class Worker:
    """A process that checks one task after the other, and is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def run(self, task: Task) -> list[Verdict]:
        """A verdict for each sample."""
        verdicts: list[Verdict] = []
        while True:
            self.connection.send(task._replace(start=len(verdicts)))
            try:
                while self.connection.poll(PATIENCE):
                    verdict = self.connection.recv()
                    if verdict is None:
                        return verdicts
                    verdicts.append(verdict)
                verdicts.append(Verdict(Status.CRASHED, f"it takes more than {PATIENCE} s"))
            except (EOFError, ConnectionResetError):
                self.process.join()
                verdicts.append(Verdict(Status.CRASHED, f"the process ended with {self.process.exitcode}"))
            self.close()
            self._start()


@cache
def _rows(dtype: str | None) -> dict[str, Operator | Module]:
    rows: list[Operator | Module] = [*operators(dtype=dtype), *modules()]
    return {row.name: row for row in rows}


def _work(connection: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what TVM says of modules that are refused
    torch.backends.mha.set_fastpath_enabled(False)  # it answers zeros at padded places, where no export does
    while True:
        task = connection.recv()
        try:
            samples = _rows(task.dtype)[task.name].samples(task.samples)[task.start :]
        except Exception as error:  # torch cannot make the samples here
            connection.send(Verdict(Status.SKIPPED, f"no samples: {error}"))
            samples = []
        for sample in samples:
            connection.send(CHECKS[task.check](sample))
        connection.send(None)
