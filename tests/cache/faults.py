"""Kill processes while they write to the cache; `python -m tests.cache.faults --kills 200` as often as one likes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
import warnings

from autocast.cache import store
from autocast.container import Format

_KIND = Format("autocast.cache.faults", 1, "a test", "a test")


def _adding() -> None:
    for number in range(10_000):
        key = f"{number % 7:02d}" + 62 * "0"
        store().add(_KIND, key, {"code": bytes([number % 251]) * 50_000}, {"number": number})


def kill_writers(count: int) -> int:
    """Kill `count` processes at a random time; after each, all files are whole, or this raises. How many were read."""
    generator = random.Random(0)
    checked = 0
    for _ in range(count):
        process = multiprocessing.get_context("fork").Process(target=_adding)
        process.start()
        time.sleep(generator.uniform(0.02, 0.12))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for file in store().files():
                found = store().find(_KIND, file.key)
                assert found is not None, file
                assert bytes(found.container["code"]) == bytes([found.container.metadata["number"] % 251]) * 50_000
                checked += 1
    return checked


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(AUTOCAST_CACHE="on", AUTOCAST_CACHE_DIR=folder)
        print(f"{options.kills} processes killed while they wrote; {kill_writers(options.kills)} files read, all whole")
