"""The first demonstration: a model run, beside torch."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from autocast import vm
from autocast.demos.bert import Options, build_bert, draw_ids
from autocast.demos.comparison import Progress, Rows, Way, comparison, figures, four_ways, make_rows, measure, wrong
from autocast.frontend import from_torch
from autocast.model import Model
from autocast.runtime import threads

#: The largest relative error of a float32 run against float64 that counts as correct.
_FLOAT32_ERROR = 1e-5


@dataclass(frozen=True)
class Result:
    """The rows: float32, AMP, torch float32, torch.autocast; and the models behind the first two.

    Attributes
    ----------
    options : Options
    parameters : float
        Size of the model's parameters in MiB.
    threads : int
        Threads of our pool, and of torch's.
    rows : tuple of Row
    float32, amp : Model
    inputs : tuple of torch.Tensor
    """

    options: Options
    parameters: float
    threads: int
    rows: Rows
    float32: Model
    amp: Model
    inputs: tuple[torch.Tensor, ...]

    def table(self) -> Table:
        """The four rows: latency, memory, error against float64, and casts."""
        options = self.options
        return comparison(
            f"BERT, {options.layers} layer{'s' if options.layers > 1 else ''}, masked-LM head, batch {options.batch} x "
            f"{options.sequence}: {self.parameters:.2f} MiB of parameters, {self.threads} threads",
            f"latency: median of {options.rounds} alternating rounds; spread: of their middle half\n"
            "intermediates: MiB beside parameters and inputs\n"
            "error: relative Frobenius norm against torch in float64\n"
            "casts: number, and what they would read and write if no kernel absorbed them; greedy: by one forward pass",
            self.rows,
        )


def run(options: Options, progress: Progress = lambda text: nullcontext()) -> Result:
    """Build, autocast, compile, run and measure; deterministic but for the latencies."""
    if options.threads:
        os.environ["AUTOCAST_NUM_THREADS"] = str(options.threads)
    workers = threads.configure()
    torch.set_num_threads(workers)
    module = build_bert(options)
    inputs = (draw_ids(options),)
    with progress("importing from torch"):
        float32 = from_torch(module, inputs)
    dtype = getattr(torch, options.dtype)
    eager = (lambda: module(*inputs).logits, lambda: _autocast(module, inputs, dtype))
    low, ways = four_ways(float32, inputs, eager, options, progress, "the model")
    with torch.inference_mode():
        with progress("computing the float64 reference"):
            reference = deepcopy(module).double()(*inputs).logits
        with progress(f"measuring {options.rounds} rounds"):
            runs = measure(list(ways.values()), options.rounds)
        errors = [None if run.result is None else relative_error(run.result, reference) for run in runs]
    eager_casts = CastCounter(eager[1])
    counted = {"casts": eager_casts.casts, "cast_bytes": eager_casts.bytes}
    rows = make_rows(ways, runs, errors, [figures(float32, inputs), figures(low, inputs), {}, counted])
    return Result(options, vm.get_param_size(float32), workers, rows, float32, low, inputs)


def failures(result: Result) -> list[str]:
    """What is wrong with the outputs: one sentence each; empty if the demonstration shows what it claims."""
    float32, low, _, eager = result.rows
    return [*wrong(float32, _FLOAT32_ERROR), *wrong(low, math.inf if eager.error is None else eager.error)]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """`|got - expected| / |expected|` in the Frobenius norm, computed in float64."""
    return float((got.double() - expected).norm() / expected.norm())


class CastCounter(TorchDispatchMode):
    """Counts the conversions between dtypes that `call()` makes in torch, and the bytes that they read and write."""

    def __init__(self, call: Way) -> None:
        super().__init__()
        self.casts = 0
        self.bytes = 0
        with torch.no_grad(), self:  # inference mode would hide what composite operators do
            call()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].dtype != result.dtype:
            self.casts += 1
            self.bytes += args[0].nbytes + result.nbytes
        return result


def _autocast(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor:
    with torch.autocast("cpu", dtype=dtype):
        return module(*inputs).logits
