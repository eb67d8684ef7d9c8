"""Buffers of one element that no state has, by which a module decides: `nn.Buffer(torch.tensor(2), persistent=False)`.

Such buffers are constants of an imported model, but to torch.export any buffer is an input, of which it knows no value.
Audio codecs keep strides and paddings so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.fx import _symbolic_trace

from autocast.errors import ImportModelError


def number_buffers(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """The submodules that have such buffers, and their names there."""
    return [
        (part, name)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if name in part._non_persistent_buffers_set and buffer is not None and _is_number(buffer)
    ]


def _is_number(buffer: torch.Tensor) -> bool:
    return buffer.numel() == 1 and not buffer.is_complex()


@contextlib.contextmanager
def known_numbers(buffers: list[tuple[torch.nn.Module, str]]) -> Iterator[None]:
    """While this is active, whoever reads one of these buffers gets a constant.

    Raises
    ------
    ImportModelError
        The module wrote one: it is no constant.
    """
    before = [(part, dict(part._buffers)) for part in {part: None for part, _ in buffers}]
    # By what a module has of its own, which what stands for it while it is traced has, too.
    values = {(id(part._buffers), name): part._buffers.pop(name) for part, name in buffers}
    made: list[torch.Tensor] = []
    ask, put = torch.nn.Module.__getattr__, torch.nn.Module.__setattr__

    def answer(part: torch.nn.Module, name: str) -> Any:
        value = values.get((id(part.__dict__.get("_buffers")), name))
        if value is None:
            return ask(part, name)
        made.append(torch.tensor(value.tolist(), dtype=value.dtype))
        return made[-1]

    def write(part: torch.nn.Module, name: str, value: Any) -> None:
        if (id(part.__dict__.get("_buffers")), name) in values:
            raise ImportModelError(f"from_torch: the module sets its buffer {name}, by whose value it decides")
        put(part, name, value)

    try:
        with (
            mock.patch.object(torch.nn.Module, "__getattr__", answer),
            mock.patch.object(torch.nn.Module, "__setattr__", write),
            mock.patch.object(_symbolic_trace, "_orig_module_getattr", answer),  # which it has while torch traces
        ):
            yield
        if any(constant._version for constant in made):
            raise ImportModelError("from_torch: the module writes into a buffer by whose value it decides")
    finally:
        for part, kept in before:
            part._buffers.clear()
            part._buffers.update(kept)
