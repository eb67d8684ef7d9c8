"""A small file of every kind of entry, for tests that damage it."""

from __future__ import annotations

import numpy as np

from autocast.container import Format, as_entry, to_bytes

KIND = Format("autocast.test", 1, "write", "read")
KEY = b"a key of 32 bytes, say, or more."

TENSORS = {
    "odd": np.arange(7, dtype="int8"),
    "weight": np.arange(64, dtype="float32").reshape(16, 4),
    "scalar": np.array(3.5, "float64"),
    "empty": np.zeros((0, 3), "float32"),
}
ENTRIES = {
    "module.json": b'{"functions": []}',
    "parts/joined": [b"abc", b"", b"def"],
    "nothing": b"",
    "weights.safetensors": as_entry(TENSORS),
}
METADATA = {"names": ["a", "b"], "number": 1.5}


def example(key: bytes | None = KEY) -> bytes:
    """The bytes of the file."""
    return to_bytes(KIND, ENTRIES, METADATA, key=key)
