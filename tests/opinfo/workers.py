"""Samples are checked in processes of their own, so that what kills one is counted, and nothing else is lost."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import NamedTuple

from tests.opinfo.check import Status, Verdict, check
from tests.opinfo.gradients import check_gradients
from tests.opinfo.samples import operators

#: Seconds after which a sample counts as crashed.
PATIENCE = 300


class Task(NamedTuple):
    """Some samples of an operator, their results or their gradients: all, or so many of the first and the empty ones,
    from number `start` on."""

    operator: str
    samples: int | None
    start: int = 0
    gradients: bool = False


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


def _work(connection: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what TVM says of modules that are refused
    known = {operator.name: operator for operator in operators()}
    while True:
        task = connection.recv()
        operator = known[task.operator]
        try:
            for sample in operator.samples(task.samples)[task.start :]:
                gradients = task.gradients
                connection.send(check_gradients(sample) if gradients else check(sample, defined=operator.defined))
        except Exception as error:  # torch cannot make the samples here
            if task.start == 0:
                connection.send(Verdict(Status.SKIPPED, f"no samples: {error}"))
        connection.send(None)
