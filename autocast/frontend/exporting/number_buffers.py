"""Small tensors by which a module decides: `nn.Buffer(torch.tensor(2), persistent=False)`, and flags that state has.

Such tensors are constants of an imported model, but to torch.export any buffer is an input, of which it knows no value,
and of a constant it knows the value only if it has one element. Audio codecs keep strides and paddings so, TabNet a
flag for each column; codebooks, and layers whose scales come from the first batch, keep whether they have been set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.fx import _symbolic_trace
from torch.fx.experimental import proxy_tensor

from autocast.errors import ImportModelError

#: How many elements torch computes with while it traces; a table of more is no list of decisions.
_MOST = 1024


def number_buffers(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """The submodules that have such buffers, or such tensors as plain attributes, and their names there."""
    return [
        (part, name)
        for part in module.modules()
        for name, value in (*part._buffers.items(), *part.__dict__.items())
        if _is_small(value) and (name in part._non_persistent_buffers_set or _is_plain(part, name))
    ]


def flags(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """The submodules that have flags in their state, and their names there."""
    return [
        (part, name)
        for part in module.modules()
        for name, value in part._buffers.items()
        if name not in part._non_persistent_buffers_set and is_flag(value)
    ]


def is_flag(value: Any) -> bool:
    """Whether it is a tensor of one element, which is 0 or 1."""
    return _is_small(value) and value.numel() == 1 and not value.is_meta and value.item() in (0, 1)


def _is_plain(part: torch.nn.Module, name: str) -> bool:
    """Whether it is an attribute of this module alone: where it is away, a class would answer with its own."""
    return name in part.__dict__ and not hasattr(type(part), name)


def _is_small(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.numel() <= _MOST
        and value.layout == torch.strided
        and not (value.is_complex() or value.requires_grad)
    )


@contextlib.contextmanager
def known_numbers(buffers: list[tuple[torch.nn.Module, str]]) -> Iterator[None]:
    """While this is active, whoever reads one of these buffers or attributes gets a constant.

    Raises
    ------
    ImportModelError
        The module wrote one: it is no constant.
    """
    holders = [part._buffers if name in part._buffers else part.__dict__ for part, name in buffers]
    before = [(holder, dict(holder)) for holder in {id(holder): holder for holder in holders}.values()]
    # By what a module has of its own, which what stands for it while it is traced has, too.
    values = {
        (id(part._buffers), name): holder.pop(name) for (part, name), holder in zip(buffers, holders, strict=True)
    }
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
            mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MOST),
            mock.patch.object(proxy_tensor, "CONSTANT_NUMEL_LIMIT", _MOST),
        ):
            yield
        if any(constant._version for constant in made):
            raise ImportModelError("from_torch: the module writes into a buffer by whose value it decides")
    finally:
        for holder, kept in before:
            for name, value in kept.items():  # in the order in which they were
                holder.pop(name, None)
                holder[name] = value
