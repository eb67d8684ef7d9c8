"""Checkpoints of training: what a `Trainer` goes on from, as one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autocast.errors import CheckpointError
from autocast.messages import check_kind, is_count
from autocast.model import files

#: What `save` writes into the file's metadata, and `load` insists on.
FORMAT = "autocast.training/1"

_KIND = files.Kind(FORMAT, "Trainer.save")
save, load = _KIND.save, _KIND.load


def check_facts(state: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless `state` has `tensors`, and `facts` with an optimizer and a number of steps."""
    check_kind("checkpoint", state, Mapping, CheckpointError, "what Trainer.state_dict answers")
    tensors, facts = state.get("tensors"), state.get("facts")
    steps, optimizer = (facts.get(key) if isinstance(facts, Mapping) else None for key in ("steps", "optimizer"))
    if not isinstance(tensors, Mapping) or not is_count(steps) or optimizer is None:
        raise CheckpointError(
            f"checkpoint: got the keys {files.some(list(state))} with facts={facts!r}, expected `tensors`, and `facts` "
            "with `steps` and `optimizer`, as Trainer.state_dict answers"
        )


def check_fits(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless `tensors` has exactly the names, dtypes and shapes of `expected`."""
    files.check_fits(tensors, expected, "what the same model, optimizer and loss scaling saved")
