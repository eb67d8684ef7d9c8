"""What a trainer is fed: batches, as sequences or by name, and those that are arranged anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from autocast.errors import InputError
from autocast.runtime.signature import Input

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


def arranged(
    batches: Iterable[Any], arrange: Callable[[], Iterator[Any]], length_of: Callable[[int], int]
) -> Iterable[Any]:
    """What `arrange` makes of `batches` in each pass over them: it can do what they can, and knows their sampler.

    `length_of` says how many there are then, from how many there are of `batches`.
    """
    if isinstance(batches, Iterator):
        return arrange()
    return (_SizedArrangement if isinstance(batches, Sized) else _Arrangement)(batches, arrange, length_of)


class _Arrangement:
    """Batches in another arrangement, as often as one likes."""

    def __init__(
        self, batches: Iterable[Any], arrange: Callable[[], Iterator[Any]], length_of: Callable[[int], int]
    ) -> None:
        self.batches, self._arrange, self._length_of = batches, arrange, length_of

    @property
    def sampler(self) -> Any:
        """The sampler of the batches, which may want to know the epoch."""
        return getattr(self.batches, "sampler", None)

    def __iter__(self) -> Iterator[Any]:
        return self._arrange()


class _SizedArrangement(_Arrangement):
    """The same of what has a length."""

    def __len__(self) -> int:
        return self._length_of(len(self.batches))  # type: ignore[arg-type]
