"""The kernels' pool: how many threads, and that it leaves torch's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from autocast.errors import UnsupportedError
from autocast.runtime import threads
from autocast.runtime.threads import physical_cores

REPORT = """
    import json, os
    from autocast.runtime import threads
    import tvm
    wanted = threads.configure()
    got = tvm.get_global_func("runtime.NumThreads")()
    print(json.dumps([wanted, got, len(os.sched_getaffinity(0)), os.environ["TVM_THREAD_POOL_SPIN_COUNT"]]))
"""


PAUSES = """
    import json, os, time
    import torch
    from autocast.runtime import threads
    torch.set_num_threads(3)
    count = lambda: len(os.listdir("/proc/self/task"))
    counts = []
    for _ in range(2):
        total = torch.ones(1 << 20) + 1
        counts.append(count())
        threads.pause_openmp()
        # The system lists a thread for a moment after its end.
        deadline = time.monotonic() + 10
        while count() > counts[-1] - 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        counts.append(count())
    print(json.dumps([*counts, torch.get_num_threads(), float(total.sum())]))
"""


#: What processes that were forked make of a model that their parent had loaded, before and after it was called.
FORKS = """
    import json, os, sys
    import numpy as np
    import autocast
    from autocast import vm
    from tvm import relax

    types = [relax.TensorType(shape, "float32") for shape in ((256, 512), (512, 512))]
    x, w = map(relax.Var, "xw", types)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    product = builder.get()

    x, w = np.ones((256, 512), "float32"), np.ones((512, 512), "float32")
    executable = vm.compile(autocast.from_relax(product, params=[w]))
    for leave in (sys.exit, os._exit):
        child = os.fork()
        if not child:
            right = [float(executable(x).min()), float(vm.compile(autocast.from_relax(product))(x, w).max())]
            print(json.dumps(right), flush=True)
            leave(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        executable(x)
"""


def in_a_fresh_process(program=REPORT, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in ("TVM_NUM_THREADS", "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines if len(lines) > 1 else lines[0]


def test_the_pool_has_one_thread_for_each_core_and_pins_nothing():
    wanted, got, visible, spins = in_a_fresh_process()
    assert wanted == got == physical_cores()
    assert visible == len(os.sched_getaffinity(0))
    assert int(spins) == threads.SPIN_COUNT


def test_more_threads_than_cores_can_be_asked_for_before_the_start():
    number = physical_cores() + 1
    assert in_a_fresh_process(TVM_NUM_THREADS=str(number))[:2] == [number, number]


def test_a_running_pool_shrinks_and_grows_back(monkeypatch):
    cores = physical_cores()
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", str(cores))
    assert threads.configure() == cores
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "1")
    assert threads.configure() == 1
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", str(cores))
    assert threads.configure() == cores
    monkeypatch.undo()
    threads.configure()


def test_a_pool_cannot_grow_beyond_its_first_size(monkeypatch):
    threads.configure()
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "1000")
    with pytest.raises(UnsupportedError, match=r"AUTOCAST_NUM_THREADS=1000: .* cannot grow"):
        threads.configure()
    monkeypatch.undo()
    threads.configure()


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="finds the library in Linux's map of the process")
def test_torchs_idle_threads_end_before_kernels_run_and_come_back():
    busy, idle, busy_again, idle_again, number, total = in_a_fresh_process(PAUSES)
    assert busy - idle == busy_again - idle_again == 2
    assert (number, total) == (3, 2.0**21)


def test_forked_processes_run_and_compile_models():
    assert in_a_fresh_process(FORKS) == [[512.0, 512.0], [512.0, 512.0]]
