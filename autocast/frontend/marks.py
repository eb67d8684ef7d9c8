"""Marks of the nodes that torch records: `torch.fx.traceback.annotate`, which torch has since 2.10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import traceback


@contextmanager
def _annotate(marks: dict[str, Any]) -> Iterator[None]:
    """What `annotate` does, for torch 2.9: nodes copy the same field there."""
    before = traceback.get_current_meta().get("custom")
    traceback.get_current_meta()["custom"] = {**(before or {}), **marks}
    try:
        yield
    finally:
        now = traceback.get_current_meta()
        now.pop("custom", None)
        if before is not None:
            now["custom"] = before


annotate = getattr(traceback, "annotate", _annotate)
