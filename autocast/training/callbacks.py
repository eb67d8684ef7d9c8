"""What `Trainer.fit` tells those who follow it, after every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from autocast.errors import TrainingError
from autocast.messages import check_value, checked_path, is_count


class Progress(NamedTuple):
    """A step that is done: how many there are with it, in which epoch (from 0) it was, its loss and learning rate."""

    steps: int
    epoch: int
    loss: float
    rate: float


#: Called after every step; what it returns is not looked at, what it raises ends the run.
Callback: TypeAlias = Callable[[Progress], Any]


class TensorBoard:
    """A callback that writes loss, learning rate and epoch for TensorBoard: `tensorboard --logdir FOLDER` shows them.

    Parameters
    ----------
    folder : path
        Where the event files are written; made where there is none.
    every : int
        Of how many steps one is written.

    Raises
    ------
    TrainingError
        The package `tensorboard` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainingError(
                f"TensorBoard: {error}; expected the packages that write its files. Try pip install torch tensorboard"
            ) from error
        check_value("TensorBoard", "every", every, lambda count: is_count(count, 1), TrainingError, "1 or more steps")
        self._writer = SummaryWriter(checked_path("TensorBoard", folder, TrainingError))
        self._every = every

    def __call__(self, progress: Progress) -> None:
        """Write a step."""
        if progress.steps % self._every == 0:
            for name, value in zip(progress._fields[1:], progress[1:], strict=True):
                self._writer.add_scalar(name, value, progress.steps)
            self._writer.flush()
