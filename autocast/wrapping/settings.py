"""The attributes that a module's code may go by: modes, options, functions, a configuration; asked in each call."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from autocast.frontend.exporting.tracing import attributes_of

#: What is compared by its value.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_COLLECTIONS = (list, tuple, set, frozenset, dict)

#: Of collections no larger ones: they are data.
_MOST = 64

#: So deep in objects that are in attributes: `self.config.text.rope["factor"]` is three.
_DEEPEST = 4

#: Modules of Python whose objects somebody's options are kept in; those of the others, such as loggers, are tools.
_OF_OPTIONS = ("types", "collections", "argparse")

#: What every module has, and what every one of transformers has since its weights were made.
_COMMON = vars(nn.Module()).keys() - {"training"} | {"_is_hf_initialized"}

#: What layers of torch's never compute by: their weights are as large, or they are these weights.
_SIZES = {"affine", "elementwise_affine", "embedding_dim", "in_channels", "in_features", "inplace", "normalized_shape"}
_SIZES |= {"num_embeddings", "num_features", "out_channels", "out_features", "_flat_weight_refs", "_flat_weights"}

#: Whether parts are in training mode, their plain attributes, and what is in collections.
_Values: TypeAlias = tuple[list[bool], list[tuple[Any, ...]], list[Any]]

_training = operator.itemgetter("training")

_Asked: TypeAlias = list[tuple[Callable[..., tuple[Any, ...]], Mapping[str, Any]]]


class _Holder(NamedTuple):
    """What has values: attributes, of which these names may say what is computed, or a collection, without names."""

    of: Any
    names: Collection[str] | None


class Settings:
    """Attributes of a module's parts, and of the objects and collections that these have, such as a configuration.

    Plain values may be those of an earlier call again, for which there are programs. All else is what it was: which
    attributes there are, functions, objects, and tensors that are neither parameters nor buffers.

    Parameters
    ----------
    module : torch.nn.Module
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())
        holders = list(_holders(self._parts))
        named = [(names, of) for of, names in holders if names is not None]
        self._attributes = [of for _, of in named]
        self._in_modes = [of for names, of in named if "training" in names]
        self._plain = _asking(named, lambda value: isinstance(value, _PLAIN))
        self._others = _asking(named, lambda value: not isinstance(value, _PLAIN))
        #: Collections of plain values alone, and of others.
        self._collections: list[Any] = []
        self._mixed: list[Any] = []
        for of in (of for of, names in holders if names is None):
            is_plain = all(isinstance(value, _PLAIN) for value in _contents(of))
            (self._collections if is_plain else self._mixed).append(of)
        self._found = list(self._objects())
        self._tensors = [value for value in self._found if isinstance(value, torch.Tensor)]
        self._shapes, self._states = self._shapes_now(), self._states_now()
        #: The values of all of them, at first and for each time when they were others.
        self._known: list[_Values] = [self._values_kept()]
        self._now = 0

    def _objects(self) -> Iterator[Any]:
        """What is not plain, here and in collections."""
        return chain(chain.from_iterable(get(of) for get, of in self._others), *map(_contents, self._mixed))

    def _shapes_now(self) -> list[Any]:
        """Classes of parts, and how many values there are."""
        return [*map(type, self._parts), *map(len, self._attributes), *map(len, self._mixed)]

    def _states_now(self) -> list[Any]:
        """Where tensors are, and how often they were written: what was made in inference mode does not count."""
        return [(tensor.data_ptr(), tensor.is_inference() or tensor._version) for tensor in self._tensors]

    def _values(self) -> _Values:
        modes, plain = list(map(_training, self._in_modes)), [get(holder) for get, holder in self._plain]
        return modes, plain, self._collections

    def _values_kept(self) -> _Values:
        """As they are now, whatever becomes of the collections."""
        modes, plain, collections = self._values()
        return modes, plain, list(map(copy.copy, collections))

    def number(self) -> int | None:
        """Which of the values that there have been are there now, from 0; None where something else has changed."""
        try:
            if self._shapes_now() != self._shapes or self._states_now() != self._states:
                return None
            if not all(map(operator.is_, self._objects(), self._found)):
                return None
            values = self._values()
            if values == self._known[self._now]:
                return self._now
        except (KeyError, RuntimeError, ValueError):  # the latter two of tensors and arrays, which are no truth values
            return None
        _, plain, collections = values
        if not all(isinstance(value, _PLAIN) for one in (*plain, *map(_contents, collections)) for value in one):
            return None
        if values not in self._known:
            self._known.append(self._values_kept())
        self._now = self._known.index(values)
        return self._now

    def forget(self) -> bool:
        """Ask for modes alone from now on, as calls change other attributes themselves; the numbers begin anew.

        Returns whether there was something else.
        """
        had = bool(self._plain or self._found or self._collections)
        self._attributes, self._plain, self._others, self._collections, self._mixed = [], [], [], [], []
        self._parts, self._tensors, self._found, self._shapes, self._states = [], [], [], [], []
        self._known, self._now = [self._values_kept()], 0
        return had


def _holders(parts: list[nn.Module]) -> Iterator[_Holder]:
    """What has values that the code of modules may go by."""
    seen: set[int] = set()
    for place, part in enumerate(parts):
        names = part.__dict__.keys() - _COMMON
        if place and type(part).__module__.startswith("torch.nn."):
            asks = _asks_for_mode(cast(Hashable, type(part)))
            never = {"p"} if isinstance(part, _DropoutNd) else set() if asks else {"training"}  # p is asked in training
            yield _Holder(part.__dict__, names - _SIZES - never)
            continue
        yield _Holder(part.__dict__, names)
        for name in names:
            yield from _within(part.__dict__[name], _DEEPEST, seen)


def _within(value: Any, deepest: int, seen: set[int]) -> Iterator[_Holder]:
    """The attributes of an object, or a collection, and those of what is in them."""
    if isinstance(value, _PLAIN) or not deepest or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, _COLLECTIONS):
        if len(value) > _MOST:
            return
        parts = list(_contents(value))
        yield _Holder(value, None)
    else:
        kind = type(value).__module__.partition(".")[0]
        held = {} if kind in sys.stdlib_module_names and kind not in _OF_OPTIONS else attributes_of(value)
        parts = list(held.values())
        yield _Holder(held, held.keys())
    for part in parts:
        yield from _within(part, deepest - 1, seen)


def _contents(collection: Any) -> Iterator[Any]:
    """What is in a collection: of a dictionary the keys, too."""
    return chain(collection, collection.values()) if isinstance(collection, dict) else iter(collection)


def _asking(named: list[tuple[Collection[str], Any]], belongs: Callable[[Any], bool]) -> _Asked:
    """What asks for the attributes of a kind, in C."""
    asked: _Asked = []
    for names, of in named:
        wanted = sorted(name for name in names if name != "training" and belongs(of[name]))
        if wanted:
            asked.append((operator.itemgetter(*wanted, wanted[0]), of))  # of one name it would return no tuple
    return asked


@functools.cache
def _asks_for_mode(kind: Hashable) -> bool:
    """Whether layers of a class of torch's compute otherwise in training."""
    methods = (
        method for parent in cast(type, kind).__mro__ if parent is not nn.Module for method in vars(parent).values()
    )
    return any("training" in method.__code__.co_names for method in methods if isinstance(method, FunctionType))
