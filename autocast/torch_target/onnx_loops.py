"""Loops in ONNX, as torch's exporter writes them, but for a version: it makes no file of a loop within another part.

The call of the function that a condition is has the version of ONNX's operators there, that of a part none; functions
of one domain and of two versions cannot be written out where they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def loop_forms() -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write loops; nothing where it does not know how (before torch 2.10)."""
    from torch.onnx._internal.exporter import _core
    from torch.onnx._internal.exporter._torchlib.ops import hop

    written: Any = getattr(hop, "higher_order_while_loop", None)
    if written is None:
        return {}

    def while_loop(*arguments: Any) -> Any:
        outputs = written(*arguments)
        for node in _core.current_tracer.nodes:
            if node.domain:
                node.version = None
        return outputs

    return {torch.ops.higher_order.while_loop: while_loop}
