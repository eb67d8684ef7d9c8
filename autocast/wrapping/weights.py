"""What a module was imported with, and whether it is that still: asked in each call, in microseconds."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as all_modules
from torch.utils.hooks import RemovableHandle

from autocast.frontend.exporting.number_buffers import is_flag
from autocast.frontend.writes import Samples, Writes

_hooks = operator.attrgetter("_forward_pre_hooks", "_forward_hooks")
_holders = operator.attrgetter("_parameters", "_buffers", "_modules")
_version = operator.attrgetter("_version")


class Hooks:
    """The hooks on calls of a module's parts, and of all modules, as they are when this is made.

    Parameters
    ----------
    module : torch.nn.Module
        Its own are not among them: torch calls them around each call of what was compiled.
    """

    def __init__(self, module: nn.Module) -> None:
        self._made = RemovableHandle.next_id
        self._places = [hooks for part in module.modules() if part is not module for hooks in _hooks(part)]
        self._places += (all_modules._global_forward_pre_hooks, all_modules._global_forward_hooks)
        self._contents = list(map(dict, self._places))
        self.are_any = any(self._contents)

    def are_here(self) -> bool:
        """Whether there are the same: surely where there were none, and torch has made no hook since."""
        if self._made == RemovableHandle.next_id and not self.are_any:
            return True
        self._made = RemovableHandle.next_id
        return self._places == self._contents


class Weights:
    """The parameters, buffers and submodules of a module, as they are when this is made.

    Parameters
    ----------
    module : torch.nn.Module
    """

    def __init__(self, module: nn.Module) -> None:
        held_by_parts = [held for part in module.modules() for held in _holders(part)]
        #: Where modules find parameters, buffers and submodules, and what they found there; where there were none.
        self._holders: list[dict[str, Any]] = [held for held in held_by_parts if held]
        self._empty = [held for held in held_by_parts if not held]
        self._contents = list(map(dict, self._holders))
        tensors = [
            (held, name, value)
            for held in self._holders
            for name, value in held.items()
            if isinstance(value, torch.Tensor)
        ]
        #: Those of one number, by where they are: equal ones are not the same.
        self._numbers = [one for one in tensors if one[2].numel() == 1]
        self._tensors = [tensor for _, _, tensor in tensors]
        #: Those that count how often they were written: what was made in inference mode does not.
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._addresses = self._addresses_now()
        self._samples = Samples(self._tensors)
        #: The buffers that an import makes constants of: programs know their values.
        self._constants = Writes(value for part in module.modules() for value in _constants_of(part))
        self.keep_constants()

    def keep_constants(self) -> None:
        """Have constants be what they are now."""
        self._written = self._constants()

    def forget_constants(self) -> None:
        """Let them be written from now on."""
        self._constants = Writes(())
        self.keep_constants()

    def are_constants(self) -> bool:
        """Whether nobody has written to them since."""
        return self._constants() == self._written

    def are_here(self) -> bool:
        """Whether the module has the same tensors and submodules, and the tensors are where they were."""
        try:  # one comparison in C, which looks at identities first: a third of the time of asking for each by name
            if self._holders != self._contents or any(self._empty):
                return False
        except RuntimeError:  # a tensor that took another's place was compared with it, number by number
            return False
        same = all(held[name] is value for held, name, value in self._numbers)
        return same and self._addresses == self._addresses_now()

    def _addresses_now(self) -> list[int]:
        """Somebody may exchange the memory of a tensor (`parameter.data = ...`, `module.to(...)`)."""
        return list(map(torch.Tensor.data_ptr, self._tensors))

    def writes(self) -> tuple[int, bytes]:
        """What is another after each write to the tensors, which are where they were."""
        return sum(map(_version, self._counted)), self._samples()


def _constants_of(part: nn.Module) -> Iterator[torch.Tensor]:
    """Its buffers that no checkpoint holds, complex ones and flags: see `autocast.frontend.parameters.is_state`, and
    `autocast.frontend.exporting.number_buffers`."""
    for name, value in part._buffers.items():
        if value is not None and (name in part._non_persistent_buffers_set or value.is_complex() or is_flag(value)):
            yield value
