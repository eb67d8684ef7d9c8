"""Kill processes while they write: `python -m tests.cache.faults --kills 200` kills as many as one likes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from autocast import from_torch, runtime, vm
from autocast.cache import store
from autocast.container import Format

_KIND = Format("autocast.cache.faults", 1, "a test", "a test")


def kill_cache_writers(count: int) -> int:
    """Kill `count` processes that add entries; after each, all entries are whole. How many were read."""
    return sum(_whole_entries() for _ in _kills(count, _add_entries))


def kill_exporters(count: int, folder: Path) -> int:
    """Kill `count` processes that export two models to one file in turn; after each, it is one of these."""
    x = torch.ones(1, 64)
    executables = [vm.compile(from_torch(nn.Linear(64, 4096, bias=False), (x,))) for _ in range(2)]
    expected = [executable(x) for executable in executables]
    path = executables[0].export(folder / "model.autocast")

    def export() -> None:
        while True:
            for executable in executables:
                executable.export(path)

    def check() -> int:
        found = runtime.load(path)(x)
        assert any(torch.equal(found, one) for one in expected), path
        return 1

    return sum(check() for _ in _kills(count, export))


def _kills(count: int, write: Callable[[], None]) -> Iterator[None]:
    """Each time that a process, which writes for ever, was killed at a random time."""
    generator = random.Random(0)
    for _ in range(count):
        process = multiprocessing.get_context("fork").Process(target=write)
        process.start()
        time.sleep(generator.uniform(0.02, 0.12))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        yield


def _add_entries() -> None:
    for number in range(10_000):
        key = f"{number % 7:02d}" + 62 * "0"
        store().add(_KIND, key, {"code": bytes([number % 251]) * 50_000}, {"number": number})


def _whole_entries() -> int:
    files = list(store().files())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in files:
            found = store().find(_KIND, file.key)
            assert found is not None, file
            assert bytes(found.container["code"]) == bytes([found.container.metadata["number"] % 251]) * 50_000
    return len(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(AUTOCAST_CACHE="on", AUTOCAST_CACHE_DIR=folder)
        entries = kill_cache_writers(options.kills)
        os.environ["AUTOCAST_CACHE"] = "off"
        artifacts = kill_exporters(options.kills, Path(folder))
    print(f"{options.kills} processes killed while they wrote entries of the cache; {entries} read, all whole")
    print(f"{options.kills} processes killed while they exported a model; {artifacts} loaded and run, all right")
