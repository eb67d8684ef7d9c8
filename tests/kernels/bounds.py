"""Which kernels write beyond what they are given, or read what lies there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import tvm
import tvm_ffi
from tvm import tirx

from autocast.kernels import lower
from tests.kernels.compiling import compile_kernels

#: Bytes before and after each buffer: more than a row of most images.
_GUARD = 1 << 14

#: Of a buffer's first element, as programs allocate it.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Beyond:
    """What a kernel does beyond a buffer: which of its arguments, and the bytes between them and its first."""

    kernel: str
    argument: int
    bytes: int
    first: int
    last: int


class _Guarded:
    """A buffer with numbers between two guards, whose bytes are all the same."""

    def __init__(self, shape: tuple[int, ...], dtype: str, byte: int, generator: torch.Generator) -> None:
        torch_dtype = getattr(torch, dtype)
        self.size = math.prod(shape) * torch_dtype.itemsize
        self.memory = torch.full((2 * _GUARD + _ALIGNMENT + self.size,), byte, dtype=torch.uint8)
        self.start = _GUARD + -(self.memory.data_ptr() + _GUARD) % _ALIGNMENT
        self.values = self.inside().view(torch_dtype).view(shape)
        if torch_dtype.is_floating_point:
            self.values.copy_(torch.randn(shape, generator=generator))
        else:  # places in what is looked up, too
            self.values.copy_(torch.randint(0, 2, shape, generator=generator))
        self.before = self.memory.clone()

    def inside(self) -> torch.Tensor:
        """Its own bytes."""
        return self.memory[self.start : self.start + self.size]

    def changed(self) -> torch.Tensor:
        """The bytes beyond it that are not what they were, counted from its first."""
        places = torch.nonzero(self.memory != self.before).flatten() - self.start
        return places[(places < 0) | (places >= self.size)]


def kernels_of(mod: tvm.IRModule, target: tvm.target.Target) -> dict[str, tirx.PrimFunc]:
    """What a module calls on a target, as its generators wrote it."""
    functions = {var.name_hint: function for var, function in lower(mod, target).functions.items()}
    return {
        name: function
        for name, function in functions.items()
        if isinstance(function, tirx.PrimFunc) and "autocast.scheduled" in (function.attrs or {})
    }


def beyond(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> Iterator[Beyond]:
    """What kernels do beyond their buffers: each is called alone, if its sizes are known.

    Results must not depend on what lies beyond: they are computed twice, with NaN there and with 0.
    """
    code = compile_kernels({name: kernel.with_attr("global_symbol", name) for name, kernel in kernels.items()}, target)
    for name, kernel in kernels.items():
        shapes = [_shape(param) for param in kernel.params]
        if None in shapes:
            continue
        runs = []
        for byte in (0xFF, 0):
            generator = torch.Generator().manual_seed(0)
            buffers = [
                _Guarded(shape or (), str(param.ty.dtype), byte, generator)
                for shape, param in zip(shapes, kernel.params, strict=True)
            ]
            code[name](*(tvm_ffi.from_dlpack(buffer.values) for buffer in buffers))
            runs.append(buffers)
        for at, (first, second) in enumerate(zip(*runs, strict=True)):
            places = torch.cat([first.changed(), torch.nonzero(first.inside() != second.inside()).flatten()])
            if len(places):
                yield Beyond(name, at, first.size, int(places.min()), int(places.max()))


def _shape(param: tirx.Var) -> tuple[int, ...] | None:
    """Of a buffer whose sizes are numbers."""
    shape = getattr(param.ty, "shape", None)
    if shape is None or not all(isinstance(size, int | tirx.IntImm) for size in shape):
        return None
    return tuple(map(int, shape))
