"""What torch's exporter has ONNX forms of: onnxscript reads it from its own source, for each export anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock


@cache
def _operators() -> Sequence[Any]:
    """Those of onnxscript: more than a second of parsing."""
    from torch.onnx._internal.exporter._registration import onnxscript_apis

    operators: Sequence[Any] = onnxscript_apis.get_torchlib_ops()
    return operators


@contextmanager
def operators_read_once() -> Iterator[None]:
    """Exports take what an earlier one of the process has read."""
    from torch.onnx._internal.exporter import _registration

    operators = _operators()
    with mock.patch.object(_registration.onnxscript_apis, "get_torchlib_ops", lambda: operators):
        yield
