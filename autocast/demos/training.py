"""The second demonstration: the same model trained, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass

import torch
from rich.table import Table
from torch.nn import functional

from autocast.demos.bert import Options, build_bert, draw_ids
from autocast.demos.comparison import Progress, Rows, comparison, figures, four_ways, make_rows, measure, wrong
from autocast.frontend import from_torch
from autocast.model import Model
from autocast.training import SGD, CrossEntropy, training_step

#: RAF's: what its example of mixed-precision training takes.
_RATE, _MOMENTUM = 0.1, 0.01

#: The step whose losses are compared, counted from 0: the gradients and the updates of the steps before decide them.
_COMPARED = 2

#: The largest relative error of a float32 loss against float64 that counts as correct.
_FLOAT32_ERROR = 1e-5

#: What an AMP loss may be off by even where torch.autocast's happens to be nearer: a sum over rows hides rounding.
_LOW_ERROR = 1e-4


@dataclass(frozen=True)
class TrainingResult:
    """The rows of a training step: float32, AMP, torch float32, torch.autocast; and the models behind the first two.

    Attributes
    ----------
    options : Options
    rows : tuple of Row
        Errors are those of the loss after a few steps, relative to torch's in float64.
    float32, amp : Model
    inputs : tuple of torch.Tensor
        (ids, labels, learning rate).
    """

    options: Options
    rows: Rows
    float32: Model
    amp: Model
    inputs: tuple[torch.Tensor, ...]

    def table(self) -> Table:
        """The four rows: latency, memory, error of the loss, and casts."""
        return comparison(
            "a training step of the same model: forward, cross-entropy, backward, SGD with momentum",
            "intermediates: MiB beside parameters, the optimizer's state and inputs\n"
            "error: of the loss after three steps, relative to torch in float64",
            self.rows,
        )


def run(options: Options, progress: Progress = lambda text: nullcontext()) -> TrainingResult:
    """Build the training step, autocast, compile, run and measure, beside torch."""
    module = build_bert(options)
    ids = draw_ids(options)
    batch = (ids, draw_ids(options, seed=1))
    inputs = (*batch, torch.tensor(_RATE))
    with progress("differentiating"):
        float32 = training_step(from_torch(module, (ids,)), CrossEntropy(), SGD(momentum=_MOMENTUM))
    dtype = getattr(torch, options.dtype)
    eager = (_torch_step(deepcopy(module), batch), _torch_step(deepcopy(module), batch, dtype))
    low, ways = four_ways(float32, inputs, eager, options, progress, "the training step")
    with progress("training in float64 for reference"):
        exact = _torch_step(module.double(), batch)
        reference = [float(exact()) for _ in range(_COMPARED + 1)][-1]
    with progress(f"measuring {options.rounds} rounds of training"):
        runs = measure(list(ways.values()), options.rounds, _COMPARED)
    errors = [None if run.result is None else abs(float(run.result) / reference - 1) for run in runs]
    uncounted = {"casts": None}
    rows = make_rows(ways, runs, errors, [figures(float32, inputs), figures(low, inputs), {}, uncounted])
    return TrainingResult(options, rows, float32, low, inputs)


def failures(result: TrainingResult) -> list[str]:
    """What is wrong with the losses: one sentence each; empty if the demonstration shows what it claims."""
    float32, low, _, eager = result.rows
    return [*wrong(float32, _FLOAT32_ERROR), *wrong(low, max(eager.error or 0.0, _LOW_ERROR))]


def _torch_step(
    module: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype | None = None
) -> Callable[[], torch.Tensor]:
    """A step of torch's SGD; with `dtype` under torch.autocast."""
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE, momentum=_MOMENTUM)
    ids, labels = batch

    def step() -> torch.Tensor:
        with torch.enable_grad():
            with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
                logits = module(ids).logits
                loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return step
