"""Checkpoints: they hold what was saved, and a file is whole or is not there, whenever the process is killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from autocast.errors import CheckpointError
from autocast.training import checkpoint

# The children write files, and do nothing that needs a thread of their parent.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def _write_for_ever(path: Path, written: Connection) -> None:
    for number in itertools.count(1):
        checkpoint.save(path, {"x": np.full(1 << 20, number, np.int32)}, {"steps": number})
        written.send(number)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_every_dtype_and_shape_comes_back_bit_by_bit(tmp_path, dtype, shape):
    tensor = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    found = checkpoint.load(checkpoint.save(tmp_path / "c.safetensors", {"x": tensor}, {}))
    assert found.tensors["x"].dtype == tensor.dtype
    assert found.tensors["x"].shape == shape
    assert found.tensors["x"].tobytes() == tensor.tobytes()


def test_a_transposed_view_is_saved_as_what_it_shows(tmp_path):
    tensor = np.arange(6.0).reshape(2, 3).T
    found = checkpoint.load(checkpoint.save(tmp_path / "c.safetensors", {"x": tensor}, {}))
    np.testing.assert_array_equal(found.tensors["x"], tensor)


def test_facts_come_back_as_they_were(tmp_path):
    facts = {"steps": 12, "optimizer": "AdamW(betas=(0.9, 0.999))", "amp": None}
    assert checkpoint.load(checkpoint.save(tmp_path / "c.safetensors", {}, facts)).facts == facts


def test_missing_folders_are_made(tmp_path):
    assert checkpoint.save(tmp_path / "runs" / "first" / "c.safetensors", {}, {}).is_file()


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = checkpoint.save(tmp_path / "c.safetensors", {"x": np.ones(3)}, {"steps": 1})
    with pytest.raises(Exception, match="object"):
        checkpoint.save(path, {"x": np.array([object()])}, {"steps": 2})
    assert checkpoint.load(path).facts == {"steps": 1}
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_a_process_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "c.safetensors"
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        ours, theirs = context.Pipe()
        writer = context.Process(target=_write_for_ever, args=(path, theirs))
        writer.start()
        for _ in range(2):
            ours.recv()
        time.sleep(0.003 * attempt)  # somewhere in the middle of the third file
        writer.kill()
        writer.join()
        found = checkpoint.load(path)
        assert found.facts["steps"] >= 2
        assert (found.tensors["x"] == found.facts["steps"]).all()


def _foreign(path: Path) -> None:
    safetensors.numpy.save_file({"x": np.ones(3)}, path)


def _truncated(path: Path) -> None:
    checkpoint.save(path, {"x": np.ones(300)}, {})
    path.write_bytes(path.read_bytes()[:-100])


def _without_facts(path: Path) -> None:
    safetensors.numpy.save_file({"x": np.ones(3)}, path, {"format": checkpoint.FORMAT})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: None, "there is no file"),
        (_without_facts, "cannot be read"),
        (_foreign, "the format None, expected 'autocast.training/1'"),
        (_truncated, "cannot be read"),
        (lambda path: path.write_text("text"), "cannot be read"),
        (Path.mkdir, "cannot be read"),
    ],
    ids=["missing", "without facts", "foreign", "truncated", "text", "folder"],
)
def test_what_is_no_checkpoint_is_an_error_that_says_so(tmp_path, spoil, message):
    path = tmp_path / "c.safetensors"
    spoil(path)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(path)
