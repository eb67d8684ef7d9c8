"""TVM's virtual machine: it runs the functions of a library of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi

from autocast.runtime import found_sizes, poison  # noqa: F401  # compiled code may call their functions

#: DLPack's number of the CPU, and the number of the device.
_CPU, _FIRST = 1, 0

#: The allocators that TVM's virtual machine knows: one asks the system each time, one keeps what is freed.
_NAIVE, _POOLED = 1, 2


class VirtualMachine:
    """The functions of one library, by their names."""

    def __init__(self, library: tvm_ffi.Module, *, pooled: bool = True) -> None:
        self._module = library["vm_load_executable"]()
        self._module["vm_initialization"](_CPU, _FIRST, _POOLED if pooled else _NAIVE)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self._module[name]
        return function

    def set_instrument(self, callback: Callable[..., Any] | None) -> None:
        """Call `callback(function, name, before, result, *args)` around each call of the machine; None ends it."""
        self._module["set_instrument"](callback)
