"""Whatever happens to the bytes of a file, reading it gives what was written or an error that says so."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autocast.container import archive, read, to_bytes
from autocast.errors import ArtifactError
from tests.container.files import ENTRIES, KEY, KIND, METADATA, example

FILE = example()


def is_refused(data, key=None):
    try:
        read(data, KIND, key=key)
    except ArtifactError:
        return True
    return False


def test_every_flipped_bit_is_found():
    flipped = bytearray(FILE)
    missed = []
    for position in range(len(FILE)):
        bit = 1 << (position * 5 % 8)  # every bit of some byte of every section
        flipped[position] ^= bit
        missed += [] if is_refused(bytes(flipped)) else [position]
        flipped[position] ^= bit
    assert missed == []


def test_every_flipped_bit_of_headers_and_manifest_is_found():
    first, end = FILE.index(b'{"format"'), len(FILE)
    flipped = bytearray(FILE)
    for position in [*range(200), *range(first, end)]:
        for bit in range(8):
            flipped[position] ^= 1 << bit
            assert is_refused(bytes(flipped)), (position, bit)
            flipped[position] ^= 1 << bit


@given(st.integers(0, len(FILE) - 1))
def test_a_truncated_file_is_refused(size):
    assert is_refused(FILE[:size])


@given(st.integers(0, len(FILE)), st.binary(min_size=1, max_size=100))
def test_inserted_bytes_are_refused(position, more):
    assert is_refused(FILE[:position] + more + FILE[position:])


@given(st.integers(0, len(FILE) - 1), st.binary(min_size=1, max_size=40))
def test_overwritten_bytes_are_refused(position, more):
    changed = (FILE[:position] + more + FILE[position + len(more) :])[: len(FILE)]
    assert changed == FILE or is_refused(changed)


@given(st.integers(0, len(FILE)), st.integers(1, len(FILE)))
def test_lost_bytes_are_refused(position, count):
    assert position == len(FILE) or is_refused(FILE[:position] + FILE[position + count :])


@given(st.binary(max_size=300))
def test_bytes_of_something_else_are_refused(data):
    assert is_refused(data) and is_refused(data + FILE[-98:])


def rebuilt(entries, order=None):
    """A well-formed archive of the given entries, as a forger who knows the format makes it."""
    listed, offsets, parts, at = [], [], [], 0
    for name, data in entries:
        entry = archive.Entry(name, len(data), zlib.crc32(data))
        header = archive.header(entry, at)
        listed.append(entry)
        offsets.append(at)
        parts += [header, data]
        at += len(header) + len(data)
    return b"".join([*parts, archive.directory(listed, offsets, at)])


def contents(data=FILE):
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def with_manifest(**changes):
    found = contents()
    manifest = {**json.loads(found["manifest.json"]), **changes}
    return rebuilt({**found, "manifest.json": json.dumps(manifest).encode()}.items())


def test_the_forger_of_these_tests_can_make_a_right_file():
    assert rebuilt(contents().items()) == FILE


@pytest.mark.parametrize("name", ["../../home/user/.bashrc", "/etc/passwd", "a/../../b", "C:\\a", "module.json"])
def test_names_that_escape_or_are_there_twice_are_refused(name):
    with pytest.raises(ArtifactError, match="the name"):
        read(rebuilt([(name, b"x"), *contents().items()]), KIND)


def test_an_entry_that_the_manifest_does_not_list_is_refused():
    with pytest.raises(ArtifactError, match="its manifest lists"):
        read(rebuilt([("more", b"x"), *contents().items()]), KIND)


def test_an_entry_that_is_missing_is_refused():
    with pytest.raises(ArtifactError, match="its manifest lists"):
        read(rebuilt(list(contents().items())[1:]), KIND)


def test_an_entry_with_another_checksum_is_refused():
    with pytest.raises(ArtifactError, match=r"'module\.json'"):
        read(rebuilt({**contents(), "module.json": b'{"functions": [1'}.items()), KIND)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 1},
        {"metadata": []},
        {"entries": []},
        {"more": 1},
        {"entries": {name: {} for name in ENTRIES}},
        {"entries": dict.fromkeys(ENTRIES, 1)},
        {"entries": {name: {"size": 17, "crc32": 0, "sha256": [1]} for name in ENTRIES}},
        {"entries": {name: {"size": 17, "crc32": "0", "sha256": []} for name in ENTRIES}},
    ],
)
def test_a_manifest_that_says_something_else_is_refused(changes):
    with pytest.raises(ArtifactError, match="is damaged, or no such file"):
        read(with_manifest(**changes), KIND)


@pytest.mark.parametrize("manifest", [b"", b"1", b"[" * 100_000, b'{"a": \xff}', b"{" * 50_000])
def test_a_manifest_that_is_no_json_object_is_refused(manifest):
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        read(rebuilt({**contents(), "manifest.json": manifest}.items()), KIND)


def test_a_changed_manifest_that_is_well_formed_is_refused_with_the_key():
    forged = with_manifest(metadata={"names": ["evil"]})
    assert read(forged, KIND).metadata == {"names": ["evil"]}  # nobody can tell without the key
    with pytest.raises(ArtifactError, match="not by the given key"):
        read(forged, KIND, key=KEY)


def test_sizes_beyond_the_file_are_refused_without_reading_there():
    entry = archive.Entry("a", 2**62, 0)
    header = archive.header(entry, 0)
    with pytest.raises(ArtifactError, match=f"'a' has {2**62} bytes"):
        read(header + archive.directory([entry], [0], len(header)), KIND)


def test_overlapping_entries_are_refused():
    entries = [archive.Entry("a", 8, zlib.crc32(bytes(8))), archive.Entry("b", 8, zlib.crc32(bytes(8)))]
    data = archive.header(entries[0], 0) + bytes(8)
    with pytest.raises(ArtifactError, match="the header of 'b'"):
        read(data + archive.directory(entries, [0, 0], len(data)), KIND)


def test_compressed_archives_are_refused():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in contents().items():
            opened.writestr(name, data)
    assert is_refused(file.getvalue())


def test_a_directory_that_points_at_itself_is_refused():
    tail = bytearray(FILE[-98:])
    for at in (0, len(FILE) - 98, len(FILE) - 97, 2**63):
        struct.pack_into("<Q", tail, 48, at)
        assert is_refused(FILE[:-98] + bytes(tail))


def test_metadata_that_json_cannot_say_are_not_written():
    with pytest.raises(TypeError):
        to_bytes(KIND, {}, {**METADATA, "a": {1, 2}})
