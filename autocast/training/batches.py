"""What a trainer is fed: batches, as sequences or by name, from an iterable or a function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocast.errors import InputError
from autocast.vm.signature import Input

#: The tensors of one step: (inputs..., labels), or all of them by name.
Batch = Sequence[Any] | Mapping[str, Any]


def tensors_of(batch: Batch, inputs: Sequence[Input]) -> tuple[Any, ...]:
    """The tensors of a batch in the order of `inputs`: as many as there are. What they are like is not looked at.

    Raises
    ------
    InputError
        There are more, or fewer, or others.
    """
    names = [spec.name for spec in inputs]
    if isinstance(batch, Mapping) and set(batch) == set(names):
        return tuple(batch[name] for name in names)
    if isinstance(batch, Sequence) and len(batch) == len(names):
        return tuple(batch)
    got, order = f"of type {type(batch).__name__}", ", in this order"
    if isinstance(batch, Mapping):
        got, order = f"of {sorted(map(str, batch))}", ", each exactly once"
    elif isinstance(batch, Sequence):
        got = f"of {len(batch)} tensor{'s' if len(batch) != 1 else ''}"
    expected = ", ".join(f"{spec.name}: {spec}" for spec in inputs)
    raise InputError(
        f"Trainer: got a batch {got}, expected ({expected}){order}. Give step, fit and evaluate tuples of them, or "
        "dictionaries by these names"
    )


def batches_until(
    batches: Iterable[Batch] | Callable[[int], Batch], steps: int | None, done: Callable[[], int]
) -> Iterator[Batch]:
    """Batches until `done()`, the number of steps that are done, is `steps`, or they end.

    Raises
    ------
    InputError
        `batches` is a function, which never ends, and `steps` is None.
    """
    if not callable(batches):
        # Not zip(range(...), batches): what it takes from an iterator to find out that it is done would be lost.
        yield from itertools.islice(batches, None if steps is None else max(0, steps - done()))
        return
    if steps is None:
        raise InputError("Trainer.fit: batches come from a function, which never ends; expected steps=..., too")
    while done() < steps:
        yield batches(done())
