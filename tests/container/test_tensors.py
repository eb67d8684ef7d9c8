"""Tensors of a file are used where it is mapped, and cut out they are a safetensors file."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from autocast.container import as_entry, read, to_bytes
from autocast.container.tensors import _NAMES
from autocast.errors import ArtifactError
from tests.container.files import KIND, TENSORS

DTYPES = st.sampled_from([*_NAMES])
SHAPES = st.lists(st.integers(0, 40), max_size=3)


def array_of(dtype, shape, seed):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    values = np.random.default_rng(seed).integers(0, 2, [*shape, kind.itemsize], "uint8")
    return values.reshape(-1).view(kind).reshape(shape)


def entry_of(tensors):
    return b"".join(bytes(memoryview(one)) for one in as_entry(tensors))


@given(st.lists(st.tuples(DTYPES, SHAPES), max_size=6))
def test_tensors_of_every_dtype_and_shape_come_back(described):
    tensors = {f"t{i}": array_of(dtype, shape, i) for i, (dtype, shape) in enumerate(described)}
    found = read(to_bytes(KIND, {"w": as_entry(tensors)}, {}), KIND).tensors("w")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].tobytes() == tensor.tobytes()


@given(st.lists(st.tuples(DTYPES, SHAPES), max_size=6))
def test_an_entry_is_what_the_safetensors_library_reads(described):
    tensors = {f"t{i}": array_of(dtype, shape, i) for i, (dtype, shape) in enumerate(described)}
    found = dict(safetensors.deserialize(entry_of(tensors)))
    assert {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in found.items()} == {
        name: (_NAMES[one.dtype.name], one.shape, one.tobytes()) for name, one in tensors.items()
    }


def test_tensors_whose_size_allows_it_begin_at_multiples_of_64_bytes():
    tensors = {f"t{i}": np.zeros(extent, "float32") for i, extent in enumerate([1, 16, 3, 4096, 48, 5])}
    found = read(to_bytes(KIND, {"w": as_entry(tensors)}, {}), KIND).tensors("w")
    aligned = {name for name, one in found.items() if one.ctypes.data % 64 == 0}
    assert {name for name, one in tensors.items() if one.nbytes % 64 == 0} <= aligned


def test_every_tensor_begins_at_a_multiple_of_its_items_size():
    tensors = {"a": np.zeros(3, "int8"), "b": np.zeros(3, "float64"), "c": np.zeros(5, "int16")}
    found = read(to_bytes(KIND, {"w": as_entry(tensors)}, {}), KIND).tensors("w")
    assert [one.ctypes.data % one.itemsize for one in found.values()] == [0, 0, 0]


def test_tensors_are_not_copied():
    found = read(to_bytes(KIND, {"w": as_entry(TENSORS)}, {}), KIND)
    assert np.shares_memory(found.tensors("w")["weight"], np.frombuffer(found["w"], np.uint8))


def test_a_dtype_that_safetensors_has_not_is_refused():
    with pytest.raises(TypeError, match="c is of complex64, expected one of bool"):
        as_entry({"c": np.zeros(2, "complex64")})


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[1]",
        b"{",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"dtype": "F33", "shape": [], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
        b'{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [99], "data_offsets": [0, 396]}}',
        b'{"a": {"dtype": "F32", "shape": [0, 99999999999999999999999], "data_offsets": [0, 0]}}',
        b'{"a": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}}',
        b'{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
    ],
)
def test_a_header_that_lies_is_an_error(header):
    found = read(to_bytes(KIND, {"w": struct.pack("<Q", len(header)) + header + b"1234"}, {}), KIND)
    with pytest.raises(ArtifactError, match="the entry 'w' is not something that write writes"):
        found.tensors("w")


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 8 + b"{}", struct.pack("<Q", 3) + b"{}"])
def test_a_header_longer_than_its_entry_is_an_error(data):
    found = read(to_bytes(KIND, {"w": data}, {}), KIND)
    with pytest.raises(ArtifactError, match="the header of its tensors is longer"):
        found.tensors("w")
