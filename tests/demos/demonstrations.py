"""What the tests of both halves of the demonstration share: a BERT small enough for a test, and what both show."""

from __future__ import annotations

from collections.abc import Sequence

from autocast.demos.bert import Options
from autocast.demos.comparison import Row

TINY = Options(batch=2, sequence=16, hidden=64, heads=2, vocabulary=300, rounds=2)

WAYS = ["float32", "AMP bfloat16", "torch eager float32", "torch.autocast bfloat16"]


def check_measured(rows: Sequence[Row]) -> None:
    """The four ways are measured as often as was asked."""
    assert [row.name for row in rows] == WAYS
    assert all(len(row.latencies) == TINY.rounds and min(row.latencies) > 0 for row in rows)


def check_shown(text: str, rows: Sequence[Row]) -> None:
    """A table shows all rows, and cuts none."""
    assert "…" not in text
    for row in rows:
        assert row.name in text
        assert f"{row.median:.1f}" in text
