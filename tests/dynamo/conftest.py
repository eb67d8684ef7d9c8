"""What every test of torch.compile and its backend has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing that Dynamo compiled before, nor afterwards, and weights that are always the same."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
