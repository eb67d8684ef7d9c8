"""Four ways to run a model, measured in turns and shown side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table

from autocast import amp, vm
from autocast.demos.bert import Options
from autocast.model import Model

#: Called with what is about to happen; returns a context manager that lasts as long as it does.
Progress = Callable[[str], Any]

#: One way to run a model.
Way = Callable[[], Any]

#: Pause before each measured run, in seconds: the other side's idle threads have gone to sleep by then.
_PAUSE = 0.02

#: Seconds after which a way is not called again that is `_SLOW` times as slow as the first: torch has no fast bfloat16
#: on some machines, and takes minutes for a training step there.
_PATIENCE, _SLOW = 30.0, 10

#: A speedup means little where half of the latencies behind it lie further apart than this share of their median.
_STEADY = 0.25


@dataclass(frozen=True)
class Row:
    """One way to run the model. Latencies in ms, memory in MiB; None where it does not apply.

    Attributes
    ----------
    latencies
        One for each round.
    error
        Relative error of the output against torch in float64, in the Frobenius norm; None where it took too long.
    memory, intermediates
        Peak memory of a call with and without parameters and inputs.
    casts, cast_bytes
        Casts a call makes (None: not counted), and the bytes that they would read and write if each were by itself.
    greedy_casts, greedy_cast_bytes
        What one greedy forward pass over the same model and rules would make.
    """

    name: str
    latencies: tuple[float, ...]
    error: float | None
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

    @property
    def spread(self) -> float:
        """How far apart the middle half of the latencies lies, as a share of their median."""
        if len(self.latencies) == 1:
            return 0.0
        first, _, third = statistics.quantiles(self.latencies, method="inclusive")
        return (third - first) / self.median


#: Float32, AMP, torch float32, torch.autocast.
Rows = tuple[Row, Row, Row, Row]


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
    runs: Sequence[Run],
    errors: Sequence[float | None],
    extra: Sequence[Mapping[str, Any]],
) -> Rows:
    """A row for each way, of what was found out about it."""
    return tuple(  # type: ignore[return-value]
        Row(name, tuple(run.latencies), error, **more)
        for name, run, error, more in zip(names, runs, errors, extra, strict=True)
    )


def figures(model: Model, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """What a row says of memory and, if it is an AMP model, of casts."""
    trace = vm.trace_memory(model, "cpu", inputs)
    memory = {"memory": trace.peak, "intermediates": trace.intermediates}
    names = ("casts", "cast_bytes", "greedy_casts", "greedy_cast_bytes")
    return memory | ({} if model.report is None else {name: getattr(model.report, name) for name in names})


@dataclass
class Run:
    """What measuring found out about one way: its latencies in ms, and the result that is compared, if it got there."""

    latencies: list[float] = field(default_factory=list)
    result: Any = None
    seconds: float = 0.0


def measure(ways: Sequence[Way], rounds: int, compared: int = 1) -> list[Run]:
    """Run each way once a round, so that all see the same state of the machine; the first round warms up.

    Parameters
    ----------
    ways
        What to call.
    rounds
        How many rounds count; fewer of a way that nobody would wait for, where need be the first alone.
    compared
        The round whose result is kept.
    """
    runs = [Run() for _ in ways]
    for number in range(max(rounds, compared) + 1):
        for way, run in zip(ways, runs, strict=True):
            if _is_too_slow(run, runs[0]):
                continue
            time.sleep(_PAUSE)
            started = time.perf_counter()
            result = way()
            taken = time.perf_counter() - started
            run.seconds += taken
            if number or _is_too_slow(run, runs[0]):
                run.latencies.append(taken * 1e3)
            if number == compared:
                run.result = result
    return runs


def _is_too_slow(run: Run, first: Run) -> bool:
    return run.seconds > max(_PATIENCE, _SLOW * first.seconds)


def wrong(row: Row, bound: float) -> list[str]:
    """What is wrong with a row: its error is above `bound`, or unknown."""
    if row.error is not None and row.error <= bound:
        return []
    error = "unknown" if row.error is None else f"{row.error:.2e}"
    return [f"the error of {row.name} against torch in float64 is {error}, expected at most {bound:.2e}"]


def comparison(title: str, caption: str, rows: Rows) -> Table:
    """Ours in two precisions beside torch's in two; speedups are over torch in float32."""
    baseline = rows[2]  # torch in float32
    restless = [row.name for row in rows if row.spread > _STEADY]
    doubt = (
        f"\n?: half of the latencies of {', '.join(restless)} spread over more than {_STEADY:.0%}" if restless else ""
    )
    most = max(len(row.latencies) for row in rows)
    slow = "".join(
        f"\n{row.name}: {len(row.latencies)} of {most} rounds, since they took over {_PATIENCE:.0f} s"
        for row in rows
        if len(row.latencies) < most
    )
    table = Table(title=title, caption=caption + slow + doubt)
    table.add_column("", no_wrap=True)
    names = ("latency ms", "minimum", "spread", "speedup", "peak MiB", "intermediates", "error")
    for name in (*names, "casts", "MiB", "greedy", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        certain = " x" if max(row.spread, baseline.spread) <= _STEADY else " ?"
        table.add_row(
            row.name,
            f"{row.median:.1f}",
            f"{min(row.latencies):.1f}",
            f"{row.spread:.0%}",
            f"{baseline.median / row.median:.2f}{certain}",
            "" if row.memory is None else f"{row.memory:.2f}",
            "" if row.intermediates is None else f"{row.intermediates:.2f}",
            "" if row.error is None else f"{row.error:.1e}",
            "" if row.casts is None else str(row.casts),
            f"{row.cast_bytes / 2**20:.1f}" if row.casts else "",
            "" if row.greedy_casts is None else str(row.greedy_casts),
            "" if row.greedy_cast_bytes is None else f"{row.greedy_cast_bytes / 2**20:.1f}",
        )
    return table
