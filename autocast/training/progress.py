"""What a run shows while it goes on, and what it says when it cannot."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from autocast.policy import Policy


def progress_line(shown: bool) -> Progress:
    """A line on standard error with the steps, the loss and the learning rate; its tasks have fields of these names."""
    columns = (
        "step",
        MofNCompleteColumn(),
        BarColumn(),
        "loss {task.fields[loss]:.4f}",
        "rate {task.fields[rate]:.2e}",
    )
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True, emoji=False), disable=not shown)


def divergence(step: int, loss: float, rate: float, amp: Policy | None) -> str:
    """The message about a step whose loss is no finite number."""
    overflows = amp is not None and amp.dtype == "float16"
    remedy = 'or amp="bfloat16", which has the range of float32' if overflows else "or a warm-up"
    return (
        f"Trainer.fit: the loss of step {step} is {loss} at a learning rate of {rate:g}, expected a finite number. "
        "What is trained has diverged too: go on from a checkpoint, with a lower learning rate, "
        f"clip_norm=1.0, {remedy}; or look for what is not finite in the batch of that step"
    )
