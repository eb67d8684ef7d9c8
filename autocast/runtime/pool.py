"""Keep the VM's pool of memory from growing with every new size of a tensor.

The pool keeps freed blocks and reuses one for an equal number of pages only. Planned storage has its upper bound's
size where there is one, and so is found again; all else whose size varies leaves blocks of each size behind.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi

from autocast.runtime.plan import PAGE
from autocast.runtime.program import Program
from autocast.runtime.sizes import Size, evaluate_all, tensor_bytes
from autocast.runtime.tensors import bytes_of, is_torch
from autocast.runtime.tvm_runtime import function

#: Bytes that blocks of different sizes may hold together, and how many times what one call needs, where that is more:
#: what frees them all between any two calls of a large model takes new pages in each of them.
LIMIT, CALLS = 256 * 2**20, 4


class VaryingBlocks:
    """The blocks that calls of varying sizes have left in the process's one pool, at most: size -> number."""

    def __init__(self) -> None:
        self._blocks: Mapping[int, int] = {}
        self._lock = threading.Lock()

    def note(self, outputs: Any) -> None:
        """Remember the blocks of `outputs`, as `hold` does."""
        sizes = {_in_pages(bytes_of(output)) for output in _tensors(outputs)}
        if not sizes <= self._blocks.keys():
            self.hold(dict.fromkeys(sizes, 1))

    def hold(self, blocks: Mapping[int, int]) -> None:
        """Remember the blocks that a call takes; free the pool's unused ones where they would be too many."""
        with self._lock:
            together = {**blocks, **{size: max(n, blocks.get(size, 0)) for size, n in self._blocks.items()}}
            if self._blocks and _bytes(together) > max(LIMIT, CALLS * _bytes(blocks)):
                function("vm.builtin.memory_manager.clear")()
                together = dict(blocks)
            self._blocks = together


class Storages:
    """What a program's `main` allocates whose size a call says."""

    def __init__(self, program: Program) -> None:
        main = program.functions["main"]
        self._params = main.params[: len(program.signature.inputs)]
        self._allocated = [
            (shape, dtype)
            for shape, dtype in _allocations(main.steps)
            if shape is not None and not all(isinstance(size, int) for size in shape)
        ]

    def blocks(self, shapes: Iterable[Sequence[int]]) -> Counter[int]:
        """The blocks that a call with inputs of these shapes takes, at most; what only running tells is not in it."""
        sizes = {
            name: size
            for own, shape in zip(self._params, shapes, strict=True)
            for name, size in zip(own, shape, strict=True)
            if isinstance(name, str)
        }
        known = ((evaluate_all(shape, sizes), dtype) for shape, dtype in self._allocated)
        return Counter(_in_pages(tensor_bytes(shape, dtype)) for shape, dtype in known if shape is not None)


def _allocations(steps: Sequence[Any]) -> Iterator[tuple[Sequence[Size] | None, str]]:
    for word, *operands in steps:
        if word == "allocate":
            _, shape, dtype = operands
            yield shape, dtype
        elif word == "branch":
            _, taken, _, otherwise, _ = operands
            yield from _allocations(taken)
            yield from _allocations(otherwise)


def _in_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _bytes(blocks: Mapping[int, int]) -> int:
    return sum(size * number for size, number in blocks.items())


def _tensors(outputs: Any) -> Iterable[Any]:
    """Those of the virtual machine, or of torch."""
    if isinstance(outputs, tvm_ffi.Tensor) or is_torch(outputs):
        yield outputs
    elif isinstance(outputs, tvm_ffi.Array | tuple | list):
        for output in outputs:
            yield from _tensors(output)


#: Of this process, as its pool is.
varying_blocks = VaryingBlocks()
