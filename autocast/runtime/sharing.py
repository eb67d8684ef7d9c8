"""Which results of a program are memory of somebody else: of an input, a parameter, a literal, or another result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi

from autocast.runtime.program import Function
from autocast.runtime.tensors import copy, is_array, is_torch

#: Of a value the numbers of what its memory may be; of a group of values a list of these.
_Origins = Any

_LITERAL = -1


def shared_results(function: Function) -> Any:
    """Of each tensor that a function returns, in lists where it returns groups, whether it shares memory with what the
    function takes, with literals, or with a result before."""
    known = _Known(function)
    known.follow(function.steps)
    seen = set(range(len(function.params))) | {_LITERAL}

    def is_shared(origins: _Origins) -> Any:
        if isinstance(origins, list):
            return [is_shared(part) for part in origins]
        found = not origins.isdisjoint(seen)
        seen.update(origins)
        return found

    shared = is_shared(known.of(function.result))
    return shared if any(_flat(shared)) else False


def own(value: Any, shared: Any) -> Any:
    """A result with copies of what is `shared`."""
    if isinstance(value, tuple | list | tvm_ffi.Array):
        parts = shared if isinstance(shared, list) else [shared] * len(value)
        return tuple(own(part, is_shared) for part, is_shared in zip(value, parts, strict=True))
    if not shared or not is_array(value):
        return value
    return value.clone() if is_torch(value) else copy(value)


class _Known:
    """What the memory of each variable may be: that of a parameter, or of what was allocated."""

    def __init__(self, function: Function) -> None:
        self.origins: dict[int, _Origins] = {number: {number} for number in range(len(function.params))}

    def of(self, value: Any) -> _Origins:
        if isinstance(value, list | tuple):
            return [self.of(part) for part in value]
        return self.origins.get(value, {_LITERAL})

    def follow(self, steps: Sequence[Any]) -> None:
        for word, *operands in steps:
            if word == "allocate":
                self.origins[operands[0]] = {operands[0]}
            elif word == "is":
                self.origins[operands[0]] = self.of(operands[1])
            elif word == "field":
                number, value, index = operands
                whole = self.of(value)
                self.origins[number] = whole[index] if isinstance(whole, list) else whole
            elif word == "call":  # which may return what it is given
                self.origins[operands[0]] = {operands[0]}.union(*_flat(self.of(operands[2])))
            elif word == "branch":
                number, *branches = operands
                for taken in branches[::2]:
                    self.follow(taken)
                self.origins[number] = set[int]().union(*(p for value in branches[1::2] for p in _flat(self.of(value))))


def _flat(nested: Any) -> list[Any]:
    return [part for one in nested for part in _flat(one)] if isinstance(nested, list) else [nested]
