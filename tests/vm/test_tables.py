"""Tables show the figures of what they are made from."""

from __future__ import annotations

from rich.table import Table

from autocast.terminal import to_text
from autocast.vm import LatencyReport, MemoryStep, MemoryTrace, OperatorTime

REPORT = LatencyReport(
    latencies=(4.0, 2.0, 3.0),
    operators=(
        OperatorTime("matmul", calls=2, total=2.0, share=0.5, bytes=4 * 2**20, flops=8_000_000),
        OperatorTime("softmax", calls=1, total=1.0, share=0.25, bytes=2**20, flops=None),
    ),
    instrumented=4.0,
    device="cpu",
    warmup=1,
    number=5,
    repeat=3,
)


def cells(table: Table) -> list[list[str]]:
    """A table's cells as text, row by row."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_latency_table_derives_rates_from_times():
    assert cells(REPORT.table()) == [
        ["matmul", "2", "2.000", "50.0%", "4.00", "2.1", "0.008", "4.0"],
        ["softmax", "1", "1.000", "25.0%", "1.00", "1.0", "", ""],
    ]


def test_the_latency_tables_title_has_the_contract():
    title = REPORT.table().title
    assert title == "median 3.000 ms, minimum 2.000 ms on cpu (3 x mean of 5 runs)"


def test_the_memory_table_has_a_row_for_each_kernel_and_warns_of_what_it_cannot_know():
    trace = MemoryTrace((MemoryStep("take", 1.5, 0.25, 2.0),), inputs=1.0, params=3.0, constants=0.5, unknown=2)
    table = trace.table()
    assert cells(table) == [["take", "1.50", "0.25", "2.00"]]
    assert table.title == "peak 6.75 MiB: intermediates 2.25, inputs 1.00, parameters 3.00, constants 0.50"
    assert table.caption == "2 allocations depend on data and are not counted"


def test_text_is_plain_and_as_wide_as_asked():
    text = to_text(REPORT.table(), width=60)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 60
    assert not any(line.endswith(" ") for line in text.splitlines())
