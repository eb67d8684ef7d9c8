"""What torch's exporter has ONNX forms of: onnxscript reads it from its own source, for each export anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock


@cache
def _operators(apis: Any) -> Sequence[Any]:
    """Those of onnxscript: more than a second of parsing."""
    operators: Sequence[Any] = apis.get_torchlib_ops()
    return operators


@contextmanager
def operators_read_once() -> Iterator[None]:
    """Exports take what an earlier one of the process has read."""
    from torch.onnx._internal.exporter import _registration

    apis = getattr(_registration, "onnxscript_apis", None)  # a part of torch that it may do without some day
    if apis is None:
        yield
        return
    operators = _operators(apis)
    with mock.patch.object(apis, "get_torchlib_ops", lambda: operators):
        yield
