"""Modules of `to_torch` say what is wrong with their inputs before an operator of torch does."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autocast import from_torch, to_torch
from autocast.errors import InputError

X, IDS = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 3), nn.Embedding(5, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.table(ids)


@cache
def _module() -> nn.Module:
    return to_torch(from_torch(_Both().eval(), (X, IDS), dynamic={"n": ("*", 0, 1, 64)}))


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "another dtype": ((X.double(), IDS), {}, r"input x is float64\[2, 4\], expected float32\[n, 4\]. Convert it"),
    "another rank": ((X[0], IDS), {}, "Give it 2 axes"),
    "another size": ((torch.zeros(2, 5), IDS), {}, r"float32\[2, 5\], expected float32\[n, 4\]"),
    "sizes that differ": ((X, IDS[:1]), {}, "n = 2"),
    "too few": ((X,), {}, "got 1 inputs, expected 2"),
    "too many": ((X, IDS, IDS), {}, "got 3 inputs, expected 2"),
    "another name": ((X,), {"id": IDS}, "ids is missing; id is none of them"),
    "an array": ((np.zeros((2, 4), "float32"), IDS), {}, r"input x is a ndarray, expected a torch tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_named(name: str) -> None:
    args, kwargs, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        _module()(*args, **kwargs)


def test_copies_check_their_inputs_too() -> None:
    for module in (copy.deepcopy(_module()), pickle.loads(pickle.dumps(_module()))):
        with pytest.raises(InputError, match="Convert it"):
            module(X, IDS.int())


def test_other_sizes_names_and_programs_pass() -> None:
    module = _module()
    expected = module(X, IDS)
    assert torch.equal(module(torch.zeros(7, 4), torch.zeros(7, dtype=torch.int64))[:2], expected)
    assert torch.equal(module(X, ids=IDS), expected)
    assert torch.equal(torch.func.vmap(module)(X[None], IDS[None])[0], expected)
    assert torch.equal(torch.export.export(module, (X, IDS)).module()(X, IDS), expected)
