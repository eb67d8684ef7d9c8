"""Threads that run compiled code, or compile it, have ended when the process ends."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import time
from autocast.runtime.workers import Worker

def work(stopping):
    stopping.wait()
    time.sleep(0.2)
    print("ended")

Worker(work).start()
print("started")
"""


def test_the_end_of_the_process_stops_a_worker_and_waits_for_it() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["started", "ended"]
    assert not ended.stderr
