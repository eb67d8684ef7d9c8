"""Compile in another process, which leaves the processor to this one.

TVM's compiler is Python for the most part: a thread of this process would stop the model at each step.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tvm

from autocast.container import Format, read, write
from autocast.errors import CompileError
from autocast.model import saving
from autocast.vm.compiled import Compiled
from autocast.vm.program import build, keep
from autocast.vm.program_cache import entries_of, loaded
from autocast.vm.signatures import signature_of
from autocast.vm.source import Source

_JOB = Format("autocast.vm.job", 1, "autocast.vm.compile", "autocast.vm.background")
_RESULT = Format("autocast.vm.result", 1, "autocast.vm.background", "autocast.vm.compile")

#: A sixth of a core that others want: with less the compiler hardly ends while a model is called without pause.
_NICE = 7

#: What the process runs. Its imports take longest of all but compiling, so it is nice before them.
_PROGRAM = f"import os; os.nice({_NICE}); from autocast.vm.background import serve; serve()"

#: Seconds between two looks of a process at whether the one that started it is still there.
_WATCH = 1.0

#: Seconds between two looks at whether the compiled code is still wanted.
_WAIT = 0.1

_ORIGIN = "compiled in the background"


def compile_elsewhere(source: Source, stopping: threading.Event) -> Compiled:
    """What `build` makes of a module, made by another process: this thread waits for it, or until `stopping` is set.

    Raises
    ------
    CompileError
        The process failed; what it said last is in the message. Or it was stopped.
    SerializationError
        The module has something that is no data.
    """
    with tempfile.TemporaryDirectory(prefix="autocast_") as folder:
        job, result = Path(folder, "job"), Path(folder, "result")
        about = {
            "inputs": len(source.signature.inputs),
            "state": source.state,
            "target": str(source.target),
            "opt_level": source.opt_level,
        }
        write(job, _JOB, saving.module_entries(source.mod), about)
        with _process(job, result) as process:
            said = _last_words(process, stopping)
        if process.returncode:
            raise CompileError(
                f"compile: the process that compiles in the background ended with {process.returncode}: "
                f"{said.strip().splitlines()[-1] if said.strip() else 'it said nothing'}. "
                "Try mode='fast', which compiles here"
            )
        container = read(result, _RESULT)
        program, library = loaded(container)
    compiled = Compiled(program, library, container.metadata["seconds"], _ORIGIN, container.metadata["kernels"])
    keep(source, compiled)
    return compiled


def _last_words(process: subprocess.Popen[str], stopping: threading.Event) -> str:
    """What a process said until it ended; CompileError if it is not waited for any more."""
    while not stopping.is_set():
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_WAIT)[1]
    raise CompileError("compile: the process ends before its model was compiled in the background")


@contextmanager
def _process(job: Path, result: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that compiles; it does not outlive this one, nor the block."""
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(os.getpid()), str(job), str(result)]
    same = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=same) as process:
        try:
            yield process
        finally:
            process.kill()


def serve() -> None:
    """Compile, in a process of its own, what another asked for: its number, and the files of the job and the result."""
    parent, job, result = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    threading.Thread(target=_end_with, args=(parent, job.parent), daemon=True).start()
    container = read(job, _JOB)
    mod, about = saving.module_in(container), container.metadata
    signature = signature_of(mod["main"], about["inputs"])
    source = Source(mod, signature, tuple(about["state"]), tvm.target.Target(about["target"]), about["opt_level"])
    compiled = build(source)
    write(result, _RESULT, entries_of(compiled), {"seconds": compiled.seconds, "kernels": compiled.kernels})


def _end_with(parent: int, folder: Path) -> None:
    """End this process when the one that started it has ended, with the folder that nobody else removes then."""
    while os.getppid() == parent:
        time.sleep(_WATCH)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
