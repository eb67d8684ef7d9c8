"""The plain attributes that a module's code may go by: modes, options, a configuration; asked in each call."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import FunctionType
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from autocast.frontend.tracing import attributes_of

#: What is compared by its value, also in these collections.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_COLLECTIONS = (list, tuple, set, frozenset)

#: Of collections no larger ones: they are data.
_MOST = 64

#: Whether parts are in training mode, and their other attributes.
_Values: TypeAlias = tuple[list[bool], list[tuple[Any, ...]]]

_training = operator.itemgetter("training")

#: What every module has, and what every one of transformers has since its weights were made.
_COMMON = vars(nn.Module()).keys() - {"training"} | {"_is_hf_initialized"}


class Settings:
    """Plain attributes of a module's parts, and of the objects that these have, such as a configuration.

    Of torch's layers it is `training` alone, where their code asks for it.

    Parameters
    ----------
    module : torch.nn.Module
    """

    def __init__(self, module: nn.Module) -> None:
        asked = [(set(names), holder) for names, holder in _asked_of(module)]
        self._in_modes = [holder for names, holder in asked if "training" in names]
        others = [(sorted(names - {"training"}), holder) for names, holder in asked]
        self._asked: list[tuple[Callable[..., Any], Mapping[str, Any]]] = [
            (operator.itemgetter(*names, names[0]), holder)  # of one name it would return no tuple
            for names, holder in others
            if names
        ]
        #: The values of all of them, at first and for each time when they were others.
        self._known: list[_Values] = [copy.deepcopy(self._values())]
        self._now = 0

    def _values(self) -> _Values:
        return list(map(_training, self._in_modes)), [get(holder) for get, holder in self._asked]

    def number(self) -> int | None:
        """Which of the values that there have been are there now, from 0; None where an attribute is gone, or is no
        longer plain."""
        try:
            values = self._values()
            if values == self._known[self._now]:
                return self._now
        except (KeyError, RuntimeError, ValueError):  # the latter two of tensors and arrays, which are no truth values
            return None
        if not all(_is_plain(value) for several in values[1] for value in several):
            return None
        if values not in self._known:
            self._known.append(copy.deepcopy(values))
        self._now = self._known.index(values)
        return self._now

    def forget(self) -> bool:
        """Ask for modes alone from now on, as calls change other attributes themselves; the numbers begin anew.

        Returns whether there was something else.
        """
        if not self._asked:
            return False
        self._asked = []
        self._known, self._now = [self._values()], 0
        return True


def _asked_of(module: nn.Module) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Names of attributes, and what has them."""
    seen: set[int] = set()
    for part in module.modules():
        if type(part).__module__.startswith("torch.nn.") and part is not module:
            yield ["training"] if _asks_for_mode(cast(Hashable, type(part))) else [], part.__dict__
            continue
        for holder in (part.__dict__, *map(attributes_of, part.__dict__.values())):
            if id(holder) not in seen:
                seen.add(id(holder))
                yield [name for name, value in holder.items() if name not in _COMMON and _is_plain(value)], holder


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return _is_plain([*value, *value.values()])
    if isinstance(value, _COLLECTIONS):
        return len(value) <= _MOST and all(isinstance(one, _PLAIN) for one in value)
    return isinstance(value, _PLAIN)


@functools.cache
def _asks_for_mode(kind: Hashable) -> bool:
    """Whether layers of a class of torch's compute otherwise in training."""
    methods = (
        method for parent in cast(type, kind).__mro__ if parent is not nn.Module for method in vars(parent).values()
    )
    return any("training" in method.__code__.co_names for method in methods if isinstance(method, FunctionType))
