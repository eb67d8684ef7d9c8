"""Modules that check values: one way raises, and an imported model goes the other one.

PYTEST_DONT_REWRITE: an `assert` is to be one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autocast import from_torch
from tests.frontend.helpers import Calls


def _asserted(x: torch.Tensor) -> torch.Tensor:
    """As Vocos and Demucs do, of a window and of what was padded."""
    assert (x > 0).all()
    assert (x > 0).all() and x.isfinite().all(), f"expected positive numbers, got {x.shape}"
    assert not (x < 0).any() and x.ndim == 2, "expected positive numbers"
    return x.log()


def _raised(x: torch.Tensor) -> torch.Tensor:
    is_valid = (x > 0).all()
    if not is_valid or x.isnan().any():
        sizes = tuple(x.shape)
        raise ValueError(f"expected positive numbers, got {sizes}")
    return x.log()


def _raised_within_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if (x < 0).any():
            raise ValueError("expected positive numbers")
    return x.log()


def _of_a_distribution(x: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(x, x).log_prob(x + 1)


@pytest.mark.parametrize("function", [_asserted, _raised, _raised_within_a_block, _of_a_distribution])
def test_a_check_of_values_is_left_out(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 0.5
    model = from_torch(Calls(function), (x,), dynamic={"rows": (0, 0, 1, 8)}, fallback="error")
    torch.testing.assert_close(model(x[:1]), function(x[:1]))
