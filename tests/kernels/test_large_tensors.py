"""Tensors of more than 2^31 elements: counted in 64 bits. They are compiled here, not run, which takes gigabytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from autocast.frontend import from_torch
from autocast.vm import compile
from tests.frontend.helpers import Calls

_ROWS, _WIDTH = 2**21 + 9, 1025

_COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows after rows": lambda x: torch.cat([x, x[:3]]),
    "rows that are written": lambda x: x.index_put((torch.tensor([1, 5]),), torch.ones(2, _WIDTH).half()),
    "another axis": lambda x: x[:, None] @ torch.ones(_WIDTH, 2).half(),
    "an image": lambda x: F.interpolate(x[None], scale_factor=2.0),
}


@pytest.mark.parametrize("name", _COMPUTED)
def test_kernels_are_made_for_tensors_of_any_size(name: str) -> None:
    large = torch.empty_strided((_ROWS, _WIDTH), (0, 0), dtype=torch.float16)  # two bytes of memory
    assert large.numel() > 2**31
    assert compile(from_torch(Calls(_COMPUTED[name]), (large,))).signature.inputs
