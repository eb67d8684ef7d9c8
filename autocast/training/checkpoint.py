"""Checkpoints: named tensors and a line about each setting, in one safetensors file that is whole or is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from autocast.errors import CheckpointError

#: What `save` writes into the file's metadata, and `load` insists on.
FORMAT = "autocast.training/1"


class Checkpoint(NamedTuple):
    """What a checkpoint holds.

    Attributes
    ----------
    tensors : dict of str to numpy.ndarray
    facts : dict
        Whatever JSON can say: the number of steps, the optimizer.
    """

    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]


def save(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
    """Write a checkpoint; whoever reads `path`, now or after a crash, finds the old file or the new one, never a part.

    The bytes go to a file beside it, reach the disk, and only then take the name: renaming is atomic in POSIX.

    Parameters
    ----------
    path : path
        The folders above it are made if they are missing.
    tensors : mapping of str to numpy.ndarray
        Of any dtype that safetensors has, bfloat16 (of ml_dtypes) among them.
    facts : mapping
        What JSON can say.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # safetensors writes an array's memory as it lies there.
    dense = {name: np.ascontiguousarray(tensor).reshape(tensor.shape) for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "facts": json.dumps(dict(facts), sort_keys=True)}
    partial = path.with_name(f".{path.name}.partial")  # one name: what a killed process left is overwritten
    try:
        safetensors.numpy.save_file(dense, partial, metadata)
        _sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    return path


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `save` wrote.

    Raises
    ------
    CheckpointError
        There is no such file, or it is not a whole checkpoint of this project.
    """
    path = Path(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(
                    f"checkpoint: {path} is a safetensors file with the format {metadata.get('format')!r}, expected "
                    f"{FORMAT!r}, as Trainer.save writes it"
                )
            names = file.keys()  # it cannot be iterated over
            return Checkpoint({name: file.get_tensor(name) for name in names}, json.loads(metadata.get("facts", "")))
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint: there is no file {path}; try Trainer.save(path) first") from error
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        raise CheckpointError(
            f"checkpoint: {path} cannot be read ({error}); expected a file that Trainer.save wrote"
        ) from error


def check_facts(state: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless `state` has `tensors`, and `facts` with an optimizer and a number of steps."""
    tensors, facts = state.get("tensors"), state.get("facts")
    steps, optimizer = (facts.get(key) if isinstance(facts, Mapping) else None for key in ("steps", "optimizer"))
    if not isinstance(tensors, Mapping) or not isinstance(steps, int) or steps < 0 or optimizer is None:
        raise CheckpointError(
            f"checkpoint: got the keys {_some(list(state))} with facts={facts!r}, expected `tensors`, and `facts` with "
            "`steps` and `optimizer`, as Trainer.state_dict answers"
        )


def check_fits(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless `tensors` has exactly the names, dtypes and shapes of `expected`."""
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    different = [
        f"{name} is {_described(tensors[name])} and not {_described(tensor)}"
        for name, tensor in expected.items()
        if name in tensors and _described(tensors[name]) != _described(tensor)
    ]
    found = [f"it lacks {_some(missing)}"] * bool(missing) + [f"it has {_some(unknown)} besides"] * bool(unknown)
    if found or different:
        raise CheckpointError(
            f"checkpoint: {'; '.join([*found, *different[:3]])}. Expected what the same model, optimizer and loss "
            "scaling saved"
        )


def _described(tensor: Any) -> str:
    return f"{tensor.dtype}[{', '.join(str(size) for size in tensor.shape)}]"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sync(path: Path) -> None:
    """Let a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
