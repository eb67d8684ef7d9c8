"""What fails, made as small as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, Self, TypeVar


class Subject(Protocol):
    """What is tried: a program, or a network."""

    @property
    def text(self) -> str:
        """It, in Python."""

    def smaller(self) -> Iterator[Self]:
        """It, without one of its parts."""


T = TypeVar("T", bound=Subject)


def shrunk(subject: T, fails: Callable[[T], bool]) -> T:
    """A part of what fails, which fails, too, and of which no smaller part does."""
    for smaller in subject.smaller():
        if fails(smaller):
            return shrunk(smaller, fails)
    return subject
