"""Replay a memory plan: what the VM's allocator holds before and after each kernel of one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from autocast.runtime.program import THREADS, Function, Program
from autocast.runtime.sizes import Size, evaluate, evaluate_all, tensor_bytes

#: The VM's pooled allocator rounds blocks to pages and reuses a freed block for an equal number of pages only.
PAGE = 4096

#: How often a function may have been entered when it is called once more.
_ENTERED = 2


@dataclass(frozen=True)
class Step:
    """Memory while one kernel runs, in bytes; parameters, inputs and constants are not in it.

    Attributes
    ----------
    name : str
        The kernel's name, or the packed function's.
    live : int
        Storages that some tensor still needs, the kernel's outputs among them.
    reserved : int
        What the pooled allocator took from the system so far: it keeps blocks that are free again.
    workspace : int
        Temporary memory inside the kernel.
    """

    name: str
    live: int
    reserved: int
    workspace: int


@dataclass(eq=False, frozen=True)
class _Block:
    """One storage; compared by identity."""

    size: int


class Replay:
    """Runs through `main` of a program as the VM does, following allocations and releases only.

    Of a function that calls itself, a loop, two calls are followed that one makes within the other.

    Attributes
    ----------
    steps : list of Step
        One for each kernel call, in order.
    unknown : int
        Allocations whose size depends on data: they are counted as nothing.
    """

    def __init__(self, program: Program, threads: int) -> None:
        self.steps: list[Step] = []
        self.unknown = 0
        self._program = program
        self._threads = threads
        self._frames: list[dict[int, Any]] = []
        self._entered: Counter[str] = Counter()
        self._free: Counter[int] = Counter()
        self._live: set[_Block] = set()
        self._reserved = 0

    def run(self, shapes: Sequence[tuple[int, ...]]) -> Replay:
        """Replay one call of `main` with arguments (parameters among them) of these shapes; returns itself."""
        main = self._program.functions["main"]
        sizes: dict[str, int] = {}
        for own, shape in zip(main.params, shapes, strict=True):
            _bind(own, shape, sizes)
        self._function(main, [None] * len(main.params), sizes)
        return self

    def _function(self, function: Function, args: Sequence[Any], sizes: dict[str, int]) -> Any:
        self._frames.append(dict(enumerate(args)))
        self._run(function.steps, sizes)
        result = self._value(function.result)
        self._frames.pop()
        self._release(kept=result)
        return result

    def _run(self, steps: Sequence[Any], sizes: dict[str, int]) -> None:
        for word, *operands in steps:
            getattr(self, f"_{word}")(sizes, *operands)

    def _value(self, value: Any) -> Any:
        """What a variable, or a group of them, holds on to: a block, a tuple of such values, or None."""
        if isinstance(value, int):
            return self._frames[-1].get(value)
        return None if value is None else tuple(map(self._value, value))

    def _allocate(self, sizes: dict[str, int], target: int, shape: Sequence[Size] | None, dtype: str) -> None:
        known = None if shape is None else evaluate_all(shape, sizes)
        self.unknown += known is None
        pages = -(-tensor_bytes(known or (0,), dtype) // PAGE) * PAGE
        if self._free[pages]:
            self._free[pages] -= 1
        else:
            self._reserved += pages
        block = _Block(pages)
        self._live.add(block)
        self._frames[-1][target] = block

    def _is(self, sizes: dict[str, int], target: int, value: Any) -> None:
        self._frames[-1][target] = self._value(value)

    def _field(self, sizes: dict[str, int], target: int, value: Any, index: int) -> None:
        fields = self._value(value)
        self._frames[-1][target] = fields[index] if isinstance(fields, tuple) else fields

    def _release(self, sizes: dict[str, int] | None = None, target: int | None = None, *, kept: Any = None) -> None:
        """Give blocks that nothing refers to any more back to the pool."""
        if target is not None:
            self._frames[-1].pop(target, None)
        reached = set(_blocks(kept))
        for frame in self._frames:
            for value in frame.values():
                reached.update(_blocks(value))
        for block in self._live - reached:
            self._free[block.size] += 1
        self._live &= reached

    def _call(
        self, sizes: dict[str, int], target: int, name: str, values: Sequence[Any], shapes: Sequence[Any]
    ) -> None:
        if self._entered[name] == _ENTERED:
            return
        callee = self._program.functions[name]
        inner: dict[str, int] = {}
        for own, shape in zip(callee.params, shapes, strict=True):
            _bind(own, evaluate_all(shape or (), sizes), inner)
        self._entered[name] += 1
        self._frames[-1][target] = self._function(callee, list(map(self._value, values)), inner)
        self._entered[name] -= 1

    def _match(self, sizes: dict[str, int], shape: Sequence[Size] | None, names: Sequence[Size]) -> None:
        _bind(names, evaluate_all(shape or (), sizes), sizes)

    def _kernel(self, sizes: dict[str, int], name: str, shapes: Sequence[Any]) -> None:
        kernel = self._program.kernels.get(name)
        workspace = 0
        if kernel is not None:
            known = kernel.sizes([evaluate_all(shape or (), sizes) or () for shape in shapes])
            workspace = evaluate(kernel.workspace, {**known, THREADS: self._threads}) or 0
        live = sum(block.size for block in self._live)
        self.steps.append(Step(name, live, self._reserved, workspace))

    def _branch(
        self, sizes: dict[str, int], target: int, steps: Sequence[Any], value: Any, others: Sequence[Any], other: Any
    ) -> None:
        """Replay both branches and go on with the one that reserves more."""
        replay = copy(self)
        replay.steps, replay._free, replay._live = list(self.steps), copy(self._free), set(self._live)
        replay._frames = [dict(frame) for frame in self._frames]
        self._run(steps, sizes)
        result = self._value(value)
        replay._run(others, sizes)
        result_of_other = replay._value(other)
        if replay._reserved > self._reserved:
            self.__dict__.update(replay.__dict__)
            result = result_of_other
        self._frames[-1][target] = result


def _blocks(value: Any) -> Iterator[_Block]:
    if isinstance(value, _Block):
        yield value
    elif isinstance(value, tuple):
        for field in value:
            yield from _blocks(field)


def _bind(own: Sequence[Size], shape: Sequence[int] | None, sizes: dict[str, int]) -> None:
    """Learn the sizes that a tensor declares by names from the shape that one of its values has."""
    for dimension, size in zip(own, shape or (), strict=False):
        if isinstance(dimension, str):
            sizes.setdefault(dimension, size)
