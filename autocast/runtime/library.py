"""Compiled code from bytes that are in memory already: nothing is written to a disk, and no compiler is asked for."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tvm_ffi

from autocast.runtime.processors import own_flags
from autocast.runtime.tvm_runtime import function

#: How a line of TVM's begins that says, at each library that is loaded, which memories beside the usual one it needs.
_NOTICE = b"Scope Loaded:"


class Library(NamedTuple):
    """Compiled code.

    Attributes
    ----------
    code : bytes or None
        A shared library; None where there is no linker to make one, so that the code is in this process alone.
    module : tvm_ffi.Module
        Its functions.
    """

    code: Any
    module: tvm_ffi.Module


_count = itertools.count()
_lock = threading.Lock()


def load_library(code: Any) -> Library:
    """The functions of a shared library, whose bytes `code` holds.

    Loading executes what the library has for that: check where it comes from first.
    """
    own_flags()  # asks Linux for the registers that the code may use
    with _lock:
        handle = os.memfd_create("autocast")
        try:
            with open(handle, "wb", closefd=False) as file:
                file.write(code)
            # The dynamic linker takes a path that it has seen for the library that it was then, and numbers of files
            # are used again: slashes and dots, which change nothing, make each path one of its own.
            unique = format(next(_count), "b").replace("0", "/").replace("1", "./")
            with _without_notices():
                library: tvm_ffi.Module = function("ffi.Module.load_from_file.so")(
                    f"/proc/self/fd/{unique}{handle}", "so"
                )
        finally:
            os.close(handle)
    return Library(code, library)


@contextmanager
def _without_notices() -> Iterator[None]:
    """What is written to the process's standard error inside, without the lines that say nothing."""
    real, written = os.dup(2), os.memfd_create("stderr")
    os.dup2(written, 2)
    try:
        yield
    finally:
        os.dup2(real, 2)
        with open(written, "rb") as file:
            file.seek(0)
            os.write(real, b"".join(line for line in file if not line.rstrip().endswith(_NOTICE)))
        os.close(real)
