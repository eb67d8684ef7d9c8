"""Tensors as one entry of a file: the bytes of a safetensors file, laid out to be used where they are mapped."""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from autocast.container.archive import LayoutError

#: The dtypes of safetensors, by numpy's.
_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_DTYPES = {
    name: np.dtype(getattr(ml_dtypes, dtype, None) or dtype)  # numpy knows those of ml_dtypes by their classes
    for dtype, name in _NAMES.items()
}

_NOTES = "__metadata__"
_LENGTH = struct.Struct("<Q")

#: Where the first tensor begins; where each begins that can, as TVM takes no other memory than such.
_PAGE, _LINE = 4096, 64


def as_entry(tensors: Mapping[str, np.ndarray], notes: Mapping[str, str] = MappingProxyType({})) -> list[Any]:
    """The bytes of a safetensors file of some tensors, as `write` takes them; dense tensors are not copied.

    Those whose size is a multiple of 64 bytes come first, each at a multiple of 64, the others last: safetensors
    allows no gap between two tensors. `notes` become what safetensors calls metadata.

    Raises
    ------
    TypeError
        safetensors has no such dtype.
    """
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    # Of the others, those with an odd number of bytes come last: each begins at a multiple of its items' size.
    ordered = sorted(arrays, key=lambda name: -min(arrays[name].nbytes & -arrays[name].nbytes or _LINE, _LINE))
    described: dict[str, Any] = {_NOTES: dict(notes)} if notes else {}
    at = 0
    for name in ordered:
        array = arrays[name]
        if array.dtype.name not in _NAMES:
            raise TypeError(f"{name} is of {array.dtype}, expected one of {', '.join(_NAMES)}")
        described[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    header = json.dumps(described, separators=(",", ":")).encode()
    alignment = _PAGE if at >= 2 * _PAGE else _LINE
    header += b" " * (-(_LENGTH.size + len(header)) % alignment)
    return [_LENGTH.pack(len(header)), header, *(arrays[name].reshape(-1).view(np.uint8) for name in ordered)]


def from_entry(data: memoryview) -> dict[str, np.ndarray]:
    """The tensors that `as_entry` wrote, in its order: arrays over `data`, which may be written to where `data` may.

    Raises
    ------
    LayoutError
        These are not the bytes of a safetensors file.
    """
    if len(data) < _LENGTH.size or (size := _LENGTH.unpack_from(data)[0]) > len(data) - _LENGTH.size:
        raise LayoutError(f"the header of its tensors is longer than the {len(data)} bytes that there are")
    begin = _LENGTH.size + size
    tensors: dict[str, np.ndarray] = {}
    at = begin
    try:
        described = json.loads(bytes(data[_LENGTH.size : begin]))
        described.pop(_NOTES, None)
        for name, one in described.items():
            dtype, shape = _DTYPES[one["dtype"]], [operator.index(extent) for extent in one["shape"]]
            end = at + prod(shape) * dtype.itemsize
            if one["data_offsets"] != [at - begin, end - begin] or min(shape, default=0) < 0 or end > len(data):
                raise ValueError(f"the tensor {name!r} does not have its place in the data")
            tensors[name] = np.frombuffer(data[at:end], np.uint8).view(dtype).reshape(shape)
            at = end
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise LayoutError(f"the header of its tensors is not as it was written: {error}") from None
    if at != len(data):
        raise LayoutError(f"its tensors end at byte {at - begin} of {len(data) - begin}")
    return tensors
