"""Tables of latencies, memory, settings and casting rules, for terminals and for logs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table

from autocast import settings

if TYPE_CHECKING:
    from autocast.demo import Result, Rows
    from autocast.demo_training import TrainingResult
    from autocast.vm.memory import MemoryTrace
    from autocast.vm.profile import LatencyReport

#: Columns of text where there is no terminal to ask.
TEXT_WIDTH = 140


def to_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Plain text, without colours, `width` columns wide at most; trailing blanks are removed."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def latency_table(report: LatencyReport) -> Table:
    """One row for each operator, the baseline first; the title has the latencies of whole calls."""
    table = Table(
        title=(
            f"median {report.median:.3f} ms, minimum {report.minimum:.3f} ms on {report.device} "
            f"({report.repeat} x mean of {report.number} runs)"
        ),
        caption="\n".join(
            [f"operators timed in runs of {report.instrumented:.3f} ms with an instrument", *report.notes]
        ),
    )
    table.add_column("operator", overflow="fold")
    for name in ("calls", "total ms", "share", "MiB", "GB/s", "GFLOP", "GFLOP/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.operators:
        seconds = row.total / 1e3
        table.add_row(
            row.name,
            str(row.calls),
            f"{row.total:.3f}",
            f"{row.share:.1%}",
            f"{row.bytes / 2**20:.2f}" if row.bytes else "",
            f"{row.bytes / seconds / 1e9:.1f}" if row.bytes and seconds else "",
            f"{row.flops / 1e9:.3f}" if row.flops is not None else "",
            f"{row.flops / seconds / 1e9:.1f}" if row.flops is not None and seconds else "",
        )
    return table


def memory_table(trace: MemoryTrace) -> Table:
    """One row for each kernel in the order of execution; the title has the sums."""
    caption = f"{trace.unknown} allocations depend on data and are not counted" if trace.unknown else None
    table = Table(
        title=(
            f"peak {trace.peak:.2f} MiB: intermediates {trace.intermediates:.2f}, inputs {trace.inputs:.2f}, "
            f"parameters {trace.params:.2f}, constants {trace.constants:.2f}"
        ),
        caption=caption,
    )
    table.add_column("kernel", overflow="fold")
    for name in ("live MiB", "workspace MiB", "reserved MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in trace:
        table.add_row(step.name, f"{step.live:.2f}", f"{step.workspace:.2f}", f"{step.reserved:.2f}")
    return table


def settings_table() -> Table:
    """Every environment variable that the project reads, with its value now."""
    table = Table(title="environment variables")
    for name in ("name", "type", "default", "now", "meaning"):
        table.add_column(name, overflow="fold")
    for setting in settings.SETTINGS:
        table.add_row(setting.name, setting.kind, str(setting.default), str(setting.value), setting.help)
    return table


def demo_table(result: Result) -> Table:
    """The demonstration's rows: latency, memory, error against float64, and casts."""
    options = result.options
    return _comparison(
        f"BERT, {options.layers} layer{'s' if options.layers > 1 else ''}, masked-LM head, batch {options.batch} x "
        f"{options.sequence}: {result.parameters:.2f} MiB of parameters, {result.threads} threads",
        f"latency: median of {options.rounds} alternating rounds; intermediates: MiB beside parameters and inputs\n"
        "error: relative Frobenius norm against torch in float64\n"
        "casts: number, and what they would read and write if no kernel absorbed them; greedy: by one forward pass",
        result.rows,
    )


def training_table(result: TrainingResult) -> Table:
    """The rows of the demonstration's second half: training steps."""
    return _comparison(
        "a training step of the same model: forward, cross-entropy, backward, SGD with momentum",
        "intermediates: MiB beside parameters, the optimizer's state and inputs\n"
        "error: of the loss after three steps, relative to torch in float64",
        result.rows,
    )


def _comparison(title: str, caption: str, rows: Rows) -> Table:
    """Ours in two precisions beside torch's in two; speedups are over torch in float32."""
    table = Table(title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for name in ("latency ms", "speedup", "peak MiB", "intermediates", "error", "casts", "MiB", "greedy", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    baseline = rows[2].median  # torch in float32
    for row in rows:
        table.add_row(
            row.name,
            f"{row.median:.1f}",
            f"{baseline / row.median:.2f} x",
            "" if row.memory is None else f"{row.memory:.2f}",
            "" if row.intermediates is None else f"{row.intermediates:.2f}",
            f"{row.error:.1e}",
            "" if row.casts is None else str(row.casts),
            f"{row.cast_bytes / 2**20:.1f}" if row.casts else "",
            "" if row.greedy_casts is None else str(row.greedy_casts),
            "" if row.greedy_cast_bytes is None else f"{row.greedy_cast_bytes / 2**20:.1f}",
        )
    return table
