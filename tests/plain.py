"""Modules compiled by TVM's own pipelines, without our kernels: what results are compared with."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm
from tvm import relax

from autocast.kernels.linking import find_linker, link
from autocast.runtime.library import load_library

#: What is compiled here is small and runs once or twice: making it fast takes longer than running it.
QUICK = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def plain_machine(mod: tvm.IRModule, target: tvm.target.Target = QUICK) -> relax.VirtualMachine:
    """A virtual machine that runs what `tvm.compile` makes of a module.

    The code is linked, where there is a linker: LLVM's compiler in memory takes four times as long for small functions.
    """
    executable, linker = tvm.compile(mod, target), find_linker()
    (code,) = executable.mod.imports
    if linker is not None and code.kind == "llvm":  # else there are no functions
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder, "unit.o")
            code.write_to_file(str(unit), "o")
            library = load_library(link(linker, [unit.read_bytes()], {}, None))
        executable.mod.clear_imports()
        executable.mod.import_module(library.module)
    return relax.VirtualMachine(executable, tvm.cpu())
