"""How long `Trainer.fit` trains, and on what: steps or epochs, of batches from an iterable or a function."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from autocast.errors import EndOfDataWarning, InputError
from autocast.messages import check_kind, check_value, is_whole
from autocast.training.batches import Batch


@dataclass(frozen=True)
class Plan:
    """What `fit` is asked for; all its numbers count what was ever done.

    Attributes
    ----------
    batches : iterable or function
        Of batches; or from the number of steps that are done to the next batch.
    steps, epochs : int, optional
        Where to stop; the earlier end counts.
    """

    batches: Iterable[Batch] | Callable[[int], Batch]
    steps: int | None
    epochs: int | None

    def steps_in_all(self, done: int) -> int | None:
        """How many steps will be done at the end, if the batches have a length; None where nobody knows."""
        ends = [] if self.steps is None else [self.steps]
        if isinstance(self.batches, Sized):
            length = len(self.batches)
            ends.append(length * self.epochs if self.epochs is not None else done + length)
        return min(ends, default=None)

    def check_remaining(self, done: int) -> None:
        """InputError where nothing is left to do."""
        if self.steps is not None and self.steps <= done:
            more = max(1, self.steps)
            raise InputError(
                f"Trainer.fit: steps is {self.steps}, which counts all steps, and {done} are done already; expected "
                f"more: steps={done + more} does {more} more"
            )
        is_over = (
            isinstance(self.batches, Sized) and self.epochs is not None and self.epochs * len(self.batches) <= done
        )
        if self.epochs is not None and (self.epochs < 1 or is_over):
            raise InputError(
                f"Trainer.fit: epochs is {self.epochs}, which counts all passes over the batches, and {done} steps are "
                "done already; expected more, and at least 1"
            )

    def remaining(self, done: Callable[[], int]) -> Iterator[tuple[int, Batch]]:
        """Batches, each with its epoch, until `done()` steps are enough, all passes are over, or they end.

        An epoch is a pass over the batches. A `sampler` with torch's `set_epoch` is told which one begins.

        Raises
        ------
        InputError
            The batches cannot be passed over as `epochs` asks.

        Warns
        -----
        EndOfDataWarning
            They end before `steps` are done.
        """
        batches, steps = self.batches, self.steps
        if callable(batches):
            assert steps is not None, "check_plan asks for them"
            while done() < steps:
                yield 0, batches(done())
            return
        before = done()
        # Not zip(range(...), batches): what it takes from an iterator to find out that it is done would be lost.
        left = None if steps is None else max(0, steps - before)
        yield from itertools.islice(_passes(batches, self.epochs, before), left)
        if steps is not None and done() < steps and self.epochs is None:
            warnings.warn(
                f"Trainer.fit: the batches ended after {done() - before} steps, and {steps} were asked for in all. "
                "Give epochs=... to pass over them again, a function from the step to its batch, or what does not end",
                EndOfDataWarning,
                stacklevel=3,
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
