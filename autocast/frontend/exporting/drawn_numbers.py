"""Numbers that the generators of Python and NumPy draw while a module is traced: it has them as constants then."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def noted_draws() -> Iterator[list[str]]:
    """The list has the names of the generators that drew, afterwards, when they are in the states that they were in."""
    drew: list[str] = []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield drew
    finally:
        if random.getstate() != of_python:
            drew.append("random")
            random.setstate(of_python)
        if not _are_same(np.random.get_state(), of_numpy):
            drew.append("numpy.random")
            np.random.set_state(of_numpy)


def _are_same(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, one, other))
