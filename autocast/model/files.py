"""Named tensors and a line about each setting, in one safetensors file that is whole or is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from autocast.container import as_entry, whole_file
from autocast.errors import CheckpointError
from autocast.messages import checked_path


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    tensors : dict of str to numpy.ndarray
    facts : dict
        Whatever JSON can say: the number of steps, the optimizer.
    """

    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]


class Kind(NamedTuple):
    """What a file is for: the format in its metadata, and the method that writes it, for messages."""

    format: str
    writer: str

    def save(self, path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        """Write a file; whoever reads `path`, now or after a crash, finds the old file or the new one, never a part.

        Parameters
        ----------
        path : path
            The folders above it are made if they are missing.
        tensors : mapping of str to numpy.ndarray
            Of any dtype that safetensors has, bfloat16 (of ml_dtypes) among them.
        facts : mapping
            What JSON can say.

        Raises
        ------
        CheckpointError
            The file cannot be written. What was at `path` is still there.
        """
        path = checked_path(self.writer, path, CheckpointError)
        pieces = as_entry(tensors, {"format": self.format, "facts": json.dumps(dict(facts), sort_keys=True)})
        try:
            with whole_file(path) as file:
                file.writelines(pieces)
        except OSError as error:
            raise CheckpointError(
                f"{self.writer}: {path} cannot be written: {error.strerror or error}. Expected the name of a file in a "
                "folder that this process may write to; nothing was changed. Try another path"
            ) from error
        return path

    def load(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Read what `save` wrote.

        Raises
        ------
        CheckpointError
            There is no such file, or it is not a whole file of this kind.
        """
        path = checked_path("checkpoint", path, CheckpointError)
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != self.format:
                    raise CheckpointError(
                        f"checkpoint: {path} is a safetensors file with the format {metadata.get('format')!r}, "
                        f"expected {self.format!r}, as {self.writer} writes it"
                    )
                names = file.keys()  # it cannot be iterated over
                tensors = {name: file.get_tensor(name) for name in names}
                return Checkpoint(tensors, json.loads(metadata.get("facts", "")))
        except FileNotFoundError as error:
            raise CheckpointError(f"checkpoint: there is no file {path}; try {self.writer}(path) first") from error
        except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
            raise CheckpointError(
                f"checkpoint: {path} cannot be read ({error}); expected a file that {self.writer} wrote"
            ) from error


def check_fits(tensors: Mapping[str, Any], expected: Mapping[str, Any], from_what: str) -> None:
    """Raise a CheckpointError unless `tensors` has exactly the names, dtypes and shapes of `expected`.

    `from_what` says in the message whose tensors would do.
    """
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    different = [
        f"{name} is {_described(tensors[name])} and not {_described(tensor)}"
        for name, tensor in expected.items()
        if name in tensors and _described(tensors[name]) != _described(tensor)
    ]
    found = [f"it lacks {some(missing)}"] * bool(missing) + [f"it has {some(unknown)} besides"] * bool(unknown)
    if found or different:
        raise CheckpointError(f"checkpoint: {'; '.join([*found, *different[:3]])}. Expected {from_what}")


def some(names: Sequence[str]) -> str:
    """The first three of several names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _described(tensor: Any) -> str:
    return f"{tensor.dtype}[{', '.join(str(size) for size in tensor.shape)}]"
