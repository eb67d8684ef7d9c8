"""Object files become one shared library, by the plain linker: no compiler driver, and no shell."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from autocast.errors import CacheWarning, CompileError
from autocast.kernels.objects import PREFIX
from autocast.messages import warn

#: Linkers for ELF that take the same arguments; the first that is on the PATH is used. A compiler driver, which would
#: call one of them, takes 50 ms longer.
LINKERS = ("ld", "ld.lld", "ld.mold", "ld.gold")

#: Where a library loaded by `tvm_ffi` looks for modules that it is to import.
_BLOB = f"{PREFIX}_library_bin"

#: What others may find: functions, and the variables in which TVM's runtime leaves its own functions.
_EXPORTS = f"{{ global: {PREFIX}*; __TVM*; local: *; }};\n"

_OPTIONS = (
    "-shared",
    "--strip-debug",  # what LLVM notes of loops is larger than their code
    "-znoexecstack",
    "-Bsymbolic",  # its own variables, whatever else is loaded
    "--version-script=exports",
    "--format=default",
)


def find_linker() -> str | None:
    """The path of the linker that is used; None, and a warning, where there is none."""
    for name in LINKERS:
        if path := shutil.which(name):
            return path
    warn(
        f"compile: none of the linkers {', '.join(LINKERS)} is on the PATH, so that machine code is made in memory, "
        "slower, and nothing of it is cached. Install one, with apt install binutils, say",
        CacheWarning,
    )
    return None


def link(linker: str, objects: Sequence[bytes], names: Mapping[str, str], blob: bytes | None) -> bytes:
    """Link object files.

    Parameters
    ----------
    linker : str
        A path that `find_linker` returned.
    objects : sequence of bytes
        What they need beside each other is looked for in the process that loads the library.
    names : mapping of str to str
        More names of functions: to the name that the objects know.
    blob : bytes, optional
        The modules that the library imports, as `tvm_ffi` reads them when it loads the library.

    Raises
    ------
    CompileError
        The linker fails.
    """
    with tempfile.TemporaryDirectory(prefix="autocast_") as name:
        folder = Path(name)
        symbols = {f"{PREFIX}{new}": f"{PREFIX}{old}" for new, old in names.items() if new != old}
        inputs = [f"{number}.o" for number in range(len(objects))]
        for file, data in zip(inputs, objects, strict=True):
            (folder / file).write_bytes(data)
        if blob is not None:
            (folder / "blob").write_bytes(blob)
            symbols[_BLOB] = "_binary_blob_start"
            inputs += ["--format=binary", "blob", "--format=default"]
        # Assignments in a file that is read as a linker script: command lines may be too short for all of them.
        (folder / "names").write_text("".join(f'"{new}" = "{old}";\n' for new, old in symbols.items()))
        (folder / "exports").write_text(_EXPORTS)
        command = [linker, *_OPTIONS, "-o", "library.so", *inputs, *(["names"] if symbols else [])]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"{linker} failed with status {done.returncode}: {done.stderr.strip()}")
        return (folder / "library.so").read_bytes()
