"""What was measured of a compiled model's latency, and each operator's part in it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from autocast.terminal import summary_of_places, to_text

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class OperatorTime:
    """One kernel's part in a call.

    Attributes
    ----------
    name : str
        The kernel's name in the compiled module.
    calls : int
        How often one run of the model calls it.
    total : float
        Time of all its calls in one run, in ms.
    share : float
        That time as a fraction of the instrumented run, 0 to 1.
    bytes : int
        Bytes of the tensors that its calls take and give, each counted once a call.
    flops : int or None
        Floating-point operations of its calls, where they are known.
    modules : tuple of str
        The torch submodules that its calls come from, one for each call of which that is known; of a backward operator
        that of the forward one.
    """

    name: str
    calls: int
    total: float
    share: float
    bytes: int
    flops: int | None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class LatencyReport(Sequence[float]):
    """Latencies of a model: a sequence of `repeat` numbers in ms, each the mean over `number` runs.

    Attributes
    ----------
    latencies : tuple of float
        The sequence, in the order of measurement.
    operators : tuple of OperatorTime
        The slowest first; what the VM does between kernels is the row "(virtual machine)".
    instrumented : float
        Time of one run with the instrument that timed `operators`, in ms: its overhead is here, not in `latencies`.
    device : str
        Where it ran.
    warmup, number, repeat : int
        How it was measured.
    notes : tuple of str
        What the reader should know: a line for each dtype that this device only stores (see `Program.notes`).
    """

    latencies: tuple[float, ...]
    operators: tuple[OperatorTime, ...]
    instrumented: float
    device: str
    warmup: int
    number: int
    repeat: int
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        return self.latencies[index]

    def __len__(self) -> int:
        return len(self.latencies)

    @property
    def median(self) -> float:
        """The median latency in ms."""
        return statistics.median(self.latencies)

    @property
    def minimum(self) -> float:
        """The smallest latency in ms."""
        return min(self.latencies)

    def by_module(self, depth: int | None = None) -> dict[str, float]:
        """Time in each torch submodule, in ms of one run, the largest first; "" is what belongs to none.

        Equal layers share a kernel, whose time is divided evenly among the submodules that call it. `depth` is how many
        parts of a submodule's path to keep: with 3, `bert.encoder.layer` has the time of all layers.
        """
        times: dict[str, float] = {}
        for row in self.operators:
            modules = row.modules + ("",) * (max(row.calls, 1) - len(row.modules))
            for module in modules:
                path = ".".join(module.split(".")[:depth])
                times[path] = times.get(path, 0.0) + row.total / len(modules)
        return dict(sorted(times.items(), key=lambda item: -item[1]))

    def to_json(self) -> str:
        """The report as one JSON object: its attributes, and `median` and `minimum`."""
        return json.dumps(asdict(self) | {"median": self.median, "minimum": self.minimum}, indent=2)

    def table(self) -> Table:
        """One row for each operator, the slowest first; the title has the latencies of whole calls."""
        from rich.table import Table  # not where nothing is shown: see `settings.table`

        table = Table(
            title=(
                f"median {self.median:.3f} ms, minimum {self.minimum:.3f} ms on {self.device} "
                f"({self.repeat} x mean of {self.number} runs)"
            ),
            caption="\n".join(
                [f"operators timed in runs of {self.instrumented:.3f} ms with an instrument", *self.notes]
            ),
        )
        table.add_column("operator", overflow="fold")
        if any(row.modules for row in self.operators):
            table.add_column("module", overflow="fold")
        for name in ("calls", "total ms", "share", "MiB", "GB/s", "GFLOP", "GFLOP/s"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.operators:
            seconds = row.total / 1e3
            table.add_row(
                row.name,
                *([summary_of_places(row.modules)] if len(table.columns) > 8 else []),
                str(row.calls),
                f"{row.total:.3f}",
                f"{row.share:.1%}",
                f"{row.bytes / 2**20:.2f}" if row.bytes else "",
                f"{row.bytes / seconds / 1e9:.1f}" if row.bytes and seconds else "",
                f"{row.flops / 1e9:.3f}" if row.flops is not None else "",
                f"{row.flops / seconds / 1e9:.1f}" if row.flops is not None and seconds else "",
            )
        return table

    def __str__(self) -> str:
        return to_text(self.table())
