"""TVM's virtual machine: it runs the functions of a library of compiled code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import tvm_ffi

from autocast.errors import UnsupportedError
from autocast.runtime import found_sizes, poison  # noqa: F401  # compiled code may call their functions

#: DLPack's number of the CPU, and the number of the device.
_CPU, _FIRST = 1, 0

#: The allocators that TVM's virtual machine knows: one asks the system each time, one keeps what is freed.
_NAIVE, _POOLED = 1, 2

#: How the virtual machine says which function nobody has registered; TVM's own of this prefix are written in Python.
_MISSING, _OF_TVM = re.compile(r"Cannot find ffi::Function (\S+) in"), "relax.run."


class VirtualMachine:
    """The functions of one library, by their names.

    Raises
    ------
    UnsupportedError
        Its code calls a function that nobody has registered in this process.
    """

    def __init__(self, library: tvm_ffi.Module, *, pooled: bool = True) -> None:
        try:
            self._module = _started(library, pooled)
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                raise
            if not missing[1].startswith(_OF_TVM):
                raise UnsupportedError(
                    f"autocast.runtime: compiled code calls the function {missing[1]!r}, which is not registered in "
                    "this process; expected it where the model is loaded, too. Import first what registers it: "
                    f"tvm_ffi.register_global_func({missing[1]!r})"
                ) from None
            importlib.import_module("tvm.relax")
            self._module = _started(library, pooled)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self._module[name]
        return function

    def set_instrument(self, callback: Callable[..., Any] | None) -> None:
        """Call `callback(function, name, before, result, *args)` around each call of the machine; None ends it."""
        self._module["set_instrument"](callback)


def _started(library: tvm_ffi.Module, pooled: bool) -> tvm_ffi.Module:
    module = library["vm_load_executable"]()
    module["vm_initialization"](_CPU, _FIRST, _POOLED if pooled else _NAIVE)
    return module
