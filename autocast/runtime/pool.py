"""Keep the VM's pool of memory from growing with every new size of an output.

The pool keeps freed blocks and reuses one for an equal number of pages only. Planned storage always has its upper
bound's size, and so is found again; an output whose size varies from call to call leaves a block of each size behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import tvm_ffi

from autocast.runtime.plan import PAGE
from autocast.runtime.tensors import bytes_of
from autocast.runtime.tvm_runtime import function

#: Bytes that blocks of different sizes, which outputs have had, may hold together.
LIMIT = 256 * 2**20


class VaryingOutputs:
    """The sizes of the blocks that outputs of varying size have left in the process's one pool."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()
        self._lock = threading.Lock()

    def note(self, outputs: Any) -> None:
        """Remember the sizes of `outputs`; free the pool's unused blocks where they would be too many."""
        sizes = {-(-bytes_of(output) // PAGE) * PAGE for output in _tensors(outputs)}
        if sizes <= self._sizes:
            return
        with self._lock:
            together = self._sizes | sizes
            if self._sizes and sum(together) > LIMIT:
                function("vm.builtin.memory_manager.clear")()
                together = sizes
            self._sizes = together


def _tensors(outputs: Any) -> Iterable[tvm_ffi.Tensor]:
    if isinstance(outputs, tvm_ffi.Tensor):
        yield outputs
    elif isinstance(outputs, tvm_ffi.Array | tuple | list):
        for output in outputs:
            yield from _tensors(output)


#: Of this process, as its pool is.
varying_outputs = VaryingOutputs()
