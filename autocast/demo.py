"""The demonstration behind `python -m autocast demo`: one BERT, four ways to run it, side by side."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autocast import amp, vm
from autocast.frontend import from_torch
from autocast.model import Model
from autocast.policy import Policy
from autocast.testing.data import randint
from autocast.testing.models import build_transformer
from autocast.vm import threads

#: Called with what is about to happen; returns a context manager that lasts as long as it does.
Progress = Callable[[str], Any]

#: One way to run a model.
Way = Callable[[], Any]

#: Pause before each measured run, in seconds: the other side's idle threads have gone to sleep by then.
_PAUSE = 0.02

#: The largest relative error of a float32 run against float64 that counts as correct.
_FLOAT32_ERROR = 1e-5


@dataclass(frozen=True)
class Options:
    """What to run: the shape of the BERT, the shape of its input, the policy of its casts, and how often it is run."""

    layers: int = 1
    batch: int = 8
    sequence: int = 128
    policy: Policy = field(default_factory=Policy)
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522
    rounds: int = 10
    threads: int = 0

    @property
    def dtype(self) -> str:
        """The AMP dtype."""
        return self.policy.dtype


@dataclass(frozen=True)
class Row:
    """One way to run the model. Latencies in ms, memory in MiB; None where it does not apply.

    Attributes
    ----------
    latencies
        One for each round.
    error
        Relative error of the output against torch in float64, in the Frobenius norm.
    memory, intermediates
        Peak memory of a call with and without parameters and inputs.
    casts, cast_bytes
        Casts a call makes (None: not counted), and the bytes that they would read and write if each were by itself.
    greedy_casts, greedy_cast_bytes
        What one greedy forward pass over the same model and rules would make.
    """

    name: str
    latencies: tuple[float, ...]
    error: float
    memory: float | None = None
    intermediates: float | None = None
    casts: int | None = 0
    cast_bytes: int = 0
    greedy_casts: int | None = None
    greedy_cast_bytes: int | None = None

    @property
    def median(self) -> float:
        """The median latency in ms."""
        return statistics.median(self.latencies)


#: Float32, AMP, torch float32, torch.autocast.
Rows = tuple[Row, Row, Row, Row]


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
        with progress("comparing outputs"):
            errors = [relative_error(way(), reference) for way in ways.values()]
        with progress(f"measuring {options.rounds} rounds"):
            latencies = measure(list(ways.values()), options.rounds)
    eager_casts = CastCounter(eager[1])
    counted = {"casts": eager_casts.casts, "cast_bytes": eager_casts.bytes}
    rows = make_rows(ways, latencies, errors, [figures(float32, inputs), figures(low, inputs), {}, counted])
    return Result(options, vm.get_param_size(float32), workers, rows, float32, low, inputs)


def failures(result: Result) -> list[str]:
    """What is wrong with the outputs: one sentence each; empty if the demonstration shows what it claims."""
    float32, low, _, eager = result.rows
    found = []
    if not float32.error <= _FLOAT32_ERROR:
        found.append(f"float32 differs from torch in float64 by {float32.error:.1e}, expected {_FLOAT32_ERROR:.0e}")
    if not low.error <= eager.error:
        found.append(f"{low.name} has an error of {low.error:.2e}, more than {eager.name}: {eager.error:.2e}")
    return found


def build_bert(options: Options) -> torch.nn.Module:
    """A `BertForMaskedLM` with seeded random weights, in evaluation mode."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        num_hidden_layers=options.layers,
        hidden_size=options.hidden,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.hidden,
        vocab_size=options.vocabulary,
        max_position_embeddings=max(512, options.sequence),
        architectures=["BertForMaskedLM"],
    )
    return build_transformer(config)


def draw_ids(options: Options, seed: int = 0) -> torch.Tensor:
    """Random tokens, (batch, sequence)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return randint((options.batch, options.sequence), high=options.vocabulary)[0]


def four_ways(
    float32: Model,
    inputs: tuple[torch.Tensor, ...],
    eager: tuple[Way, Way],
    options: Options,
    progress: Progress,
    what: str,
) -> tuple[Model, dict[str, Way]]:
    """The AMP model of `float32`, and the ways to run both and torch's two, `eager`; progress says `what` they are."""
    with progress(f"autocasting {what} to {options.dtype}"):
        low = amp.autocast(float32, inputs, policy=options.policy)
    with progress(f"compiling {what} in float32"):
        executable = vm.compile(float32)
    with progress(f"compiling {what} in {options.dtype}"):
        low_executable = vm.compile(low)
    return low, {
        "float32": lambda: executable(*inputs),
        f"AMP {options.dtype}": lambda: low_executable(*inputs),
        "torch eager float32": eager[0],
        f"torch.autocast {options.dtype}": eager[1],
    }


def make_rows(
    names: Iterable[str],
    latencies: Sequence[Sequence[float]],
    errors: Sequence[float],
    extra: Sequence[Mapping[str, Any]],
) -> Rows:
    """A row for each way, of what was found out about it."""
    return tuple(  # type: ignore[return-value]
        Row(name, tuple(times), error, **more)
        for name, times, error, more in zip(names, latencies, errors, extra, strict=True)
    )


def figures(model: Model, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """What a row says of memory and, if it is an AMP model, of casts."""
    trace = vm.trace_memory(model, "cpu", inputs)
    memory = {"memory": trace.peak, "intermediates": trace.intermediates}
    names = ("casts", "cast_bytes", "greedy_casts", "greedy_cast_bytes")
    return memory | ({} if model.report is None else {name: getattr(model.report, name) for name in names})


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """`|got - expected| / |expected|` in the Frobenius norm, computed in float64."""
    return float((got.double() - expected).norm() / expected.norm())


def measure(ways: list[Way], rounds: int) -> list[list[float]]:
    """Latencies in ms of each way, in rounds that run each once, so that all see the same state of the machine."""
    latencies: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, times in zip(ways, latencies, strict=True):
            time.sleep(_PAUSE)
            started = time.perf_counter()
            way()
            if number:  # the first round warms up
                times.append((time.perf_counter() - started) * 1e3)
    return latencies


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
