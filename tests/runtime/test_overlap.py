"""Inputs that share elements are found, and those that only lie near one another are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autocast.runtime.overlap import shared_with

_X = torch.arange(80.0).view(10, 8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_X, _X),
        (_X, _X.view(-1)),
        (_X[:, :4], _X[:, 3:]),
        (_X[0, 0], _X[:, 0]),
        (_X[:, 0].expand(3, 10), _X[1:, 0]),
        (_X.numpy()[::-1], _X.t()[1]),
        (_X.view(torch.int16), _X[3:4]),
    ],
)
def test_what_is_shared(one: Any, other: Any) -> None:
    assert shared_with([0], (one, other)) == (0, 1)
    assert shared_with([1], (one, other)) == (1, 0)
    assert shared_with([], (one, other)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_X, _X.clone()),
        (_X[:5], _X[5:]),
        (_X[:, :4], _X[:, 4:]),
        (_X[::2], _X[1::2]),
        (_X[0, 0], _X[0, 1]),
        (_X, _X[:0]),
        (_X, 3),
        (np.flip(_X.numpy()[:5]), _X[5:]),
    ],
)
def test_what_lies_apart(one: Any, other: Any) -> None:
    assert shared_with([0, 1], (one, other)) is None


_SLICES = st.builds(slice, st.integers(0, 9), st.integers(0, 10), st.integers(1, 3))


@given(st.lists(st.tuples(_SLICES, _SLICES), min_size=2, max_size=5), st.sets(st.integers(0, 4)))
def test_parts_of_one_tensor_share_what_a_write_changes(parts: list[tuple[slice, slice]], written: set[int]) -> None:
    views = [_X[part] for part in parts]
    written &= set(range(len(views)))
    numbers = [set(view.flatten().tolist()) for view in views]
    pairs = {(i, j) for i in written for j in range(len(views)) if i != j and numbers[i] & numbers[j]}
    found = shared_with(written, views)
    assert found in pairs if pairs else found is None
