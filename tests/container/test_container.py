"""Files of named entries come back as they were written, and are ordinary ZIP archives."""

from __future__ import annotations

import ast
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from autocast import container
from autocast.container import Format, formats, read, to_bytes, write
from autocast.errors import ArtifactError
from tests.container.files import ENTRIES, KEY, KIND, METADATA, example


def joined(value):
    return value if isinstance(value, bytes) else b"".join(bytes(memoryview(one)) for one in value)


def test_entries_and_metadata_come_back_from_a_file(tmp_path):
    path = write(tmp_path / "folder" / "file", KIND, ENTRIES, METADATA)
    found = read(path, KIND)
    assert {name: bytes(found[name]) for name in found.names} == {name: joined(one) for name, one in ENTRIES.items()}
    assert found.metadata == METADATA
    assert found.versions["numpy"] == np.__version__


def test_bytes_are_those_of_the_file(tmp_path):
    assert write(tmp_path / "file", KIND, ENTRIES, METADATA, key=KEY).read_bytes() == example()
    assert bytes(read(example(), KIND)["parts/joined"]) == b"abcdef"


def test_a_file_is_a_zip_archive_that_other_tools_verify():
    with zipfile.ZipFile(io.BytesIO(example())) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [*ENTRIES, "manifest.json", "manifest.hmac"]
        assert archive.read("module.json") == ENTRIES["module.json"]
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == "autocast.test/1"
    assert manifest["entries"]["module.json"]["size"] == len(ENTRIES["module.json"])


def test_small_entries_begin_on_a_line_of_the_cache_and_large_ones_on_a_page(tmp_path):
    large = bytes(range(256)) * 512
    path = write(tmp_path / "file", KIND, {"a": b"123", "b": b"45", "large": large}, {})
    found = read(path, KIND)
    address = {name: np.frombuffer(found[name], np.uint8).ctypes.data for name in found.names}
    assert [address[name] % 64 for name in "ab"] == [0, 0]
    assert address["large"] % 4096 == 0


def test_an_entry_is_read_only_and_a_private_one_changes_no_file(tmp_path):
    path = write(tmp_path / "file", KIND, ENTRIES, METADATA)
    found = read(path, KIND)
    with pytest.raises(TypeError):
        found["module.json"][0] = 0
    found.private("module.json")[0] = 0
    assert bytes(read(path, KIND)["module.json"]) == ENTRIES["module.json"]


def test_an_entry_of_several_chunks_has_a_digest_for_each(monkeypatch):
    monkeypatch.setattr(formats, "CHUNK", 16)
    data = to_bytes(KIND, {"a": [bytes(range(10)), bytes(range(40)), b"x" * 14]}, {})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(json.loads(archive.read("manifest.json"))["entries"]["a"]["sha256"]) == 4
    assert bytes(read(data, KIND)["a"]) == bytes(range(10)) + bytes(range(40)) + b"x" * 14
    position = data.index(b"xxxx")
    with pytest.raises(ArtifactError, match=r"'a' has other bytes"):
        read(data[:position] + b"y" + data[position + 1 :], KIND)


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a//b", "", "a\\b", "ä", ".a", "manifest.json", "x" * 256])
def test_names_that_are_no_plain_relative_paths_are_not_written(name):
    with pytest.raises(ValueError, match="name"):
        to_bytes(KIND, {name: b""}, {})


def test_metadata_of_an_older_version_are_migrated_step_by_step():
    old = to_bytes(Format("autocast.test", 1, "write", "read"), {}, {"a": 1})
    steps = {1: lambda old: {"b": old["a"] + 1}, 2: lambda old: {"c": old["b"] * 10}}
    assert read(old, Format("autocast.test", 3, "write", "read", steps)).metadata == {"c": 20}


def test_a_version_that_cannot_be_read_is_named_with_those_that_can():
    foreign = to_bytes(Format("autocast.test", 7, "write", "read"), {}, {})
    with pytest.raises(ArtifactError, match=r"autocast\.test/7.*autocast\.test/3.*versions \[2, 3\]"):
        read(foreign, Format("autocast.test", 3, "write", "read", {2: dict}))


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(ArtifactError, match=r"marked 'autocast.test/1', expected 'autocast.other/1'"):
        read(example(), Format("autocast.other", 1, "write", "read"))


def test_a_signed_file_is_read_with_its_key_and_without_one():
    assert read(example(), KIND, key=KEY).metadata == read(example(), KIND).metadata == METADATA


def test_another_key_is_refused():
    with pytest.raises(ArtifactError, match="not by the given key"):
        read(example(), KIND, key=b"another")


def test_a_file_without_a_signature_is_refused_where_a_key_is_given():
    with pytest.raises(ArtifactError, match="not signed"):
        read(example(key=None), KIND, key=KEY)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"read: .*absent cannot be read: No such file"):
        read(tmp_path / "absent", KIND)


def test_the_package_imports_nothing_but_numpy_errors_and_messages():
    allowed = {
        "numpy",
        "ml_dtypes",
        "autocast.container",
        "autocast.errors",
        "autocast.messages",
        *sys.stdlib_module_names,
    }
    for path in Path(container.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert {name, name.rpartition(".")[0], name.partition(".")[0]} & allowed, f"{path.name} imports {name}"
