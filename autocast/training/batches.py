"""What a trainer is fed: batches, as sequences or by name, from an iterable or a function."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from autocast.errors import EndOfDataWarning, InputError
from autocast.messages import check_kind, check_value, is_whole
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


def batches_until(
    batches: Iterable[Batch] | Callable[[int], Batch], steps: int | None, epochs: int | None, done: Callable[[], int]
) -> Iterator[tuple[int, Batch]]:
    """Batches, each with its epoch, until `done()` steps are `steps`, `epochs` passes are over, or they end.

    An epoch is a pass over `batches`. A `sampler` with torch's `set_epoch` is told which one begins.

    Raises
    ------
    InputError
        `batches` cannot be passed over as `epochs` asks.

    Warns
    -----
    EndOfDataWarning
        They end before `steps` are done.
    """
    if callable(batches):
        assert steps is not None, "check_plan asks for them"
        while done() < steps:
            yield 0, batches(done())
        return
    before = done()
    # Not zip(range(...), batches): what it takes from an iterator to find out that it is done would be lost.
    yield from itertools.islice(_passes(batches, epochs, before), None if steps is None else max(0, steps - before))
    if steps is not None and done() < steps and epochs is None:
        warnings.warn(
            f"Trainer.fit: the batches ended after {done() - before} steps, and {steps} were asked for in all. Give "
            "epochs=... to pass over them again, a function from the step to its batch, or what does not end",
            EndOfDataWarning,
            stacklevel=3,
        )


def steps_in_all(
    batches: Iterable[Batch] | Callable[[int], Batch], steps: int | None, epochs: int | None, done: int
) -> int | None:
    """How many steps will be done when `fit` ends, if the batches have a length; None where nobody knows."""
    ends = [] if steps is None else [steps]
    if isinstance(batches, Sized):
        ends.append(len(batches) * epochs if epochs is not None else done + len(batches))
    return min(ends, default=None)


def check_remaining(
    batches: Iterable[Batch] | Callable[[int], Batch], steps: int | None, epochs: int | None, done: int
) -> None:
    """InputError where `steps` or `epochs`, which count all that was ever done, leave nothing to do."""
    if steps is not None and steps <= done:
        raise InputError(
            f"Trainer.fit: steps is {steps}, which counts all steps, and {done} are done already; expected more: "
            f"steps={done + max(1, steps)} does {max(1, steps)} more"
        )
    if epochs is not None and (epochs < 1 or (isinstance(batches, Sized) and epochs * len(batches) <= done)):
        raise InputError(
            f"Trainer.fit: epochs is {epochs}, which counts all passes over the batches, and {done} steps are done "
            "already; expected more, and at least 1"
        )


def check_plan(batches: Any, steps: Any, epochs: Any) -> None:
    """InputError unless these are batches, or a function of them, and numbers of steps and epochs."""
    if not callable(batches):
        check_kind(
            "Trainer.fit", batches, Iterable, InputError, "batches: a list, a DataLoader, or a function of steps"
        )
    if isinstance(batches, Sized) and not len(batches):
        raise InputError("Trainer.fit: got no batches, expected at least one; is the list empty?")
    for name, count in (("steps", steps), ("epochs", epochs)):
        check_value("Trainer.fit", name, count, lambda n: n is None or is_whole(n), InputError, "a whole number")
    if callable(batches) and (steps is None or epochs is not None):
        raise InputError("Trainer.fit: batches come from a function, which never ends; expected steps=... alone")


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


def _passes(batches: Iterable[Batch], epochs: int | None, before: int) -> Iterator[tuple[int, Batch]]:
    """One pass over `batches`; or what is left of `epochs` of them when `before` steps are done."""
    if epochs is None:
        yield from ((0, batch) for batch in batches)
        return
    if isinstance(batches, Iterator) and epochs > 1:
        raise InputError(
            f"Trainer.fit: got an iterator and epochs={epochs}, expected batches that can be passed over again: a "
            "torch DataLoader, or a list"
        )
    first = skipped = 0
    if before:
        if not isinstance(batches, Sized) or not len(batches):
            raise InputError(
                f"Trainer.fit: {before} steps are done, and {type(batches).__name__} has no length, so that nobody "
                "knows how many epochs that is; expected steps=... instead of epochs"
            )
        first, skipped = divmod(before, len(batches))
    for epoch in range(first, epochs):
        set_epoch = getattr(getattr(batches, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        yield from ((epoch, batch) for batch in itertools.islice(batches, skipped, None))
        skipped = 0
