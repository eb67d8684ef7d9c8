"""Numbers that other generators than torch's draw while a module is traced."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from autocast.errors import DrawnNumberWarning
from autocast.frontend import from_torch


class _Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.random() + np.random.rand()


def test_numbers_that_become_constants_are_named_and_are_the_next_ones_still() -> None:
    x = torch.randn(3)
    with pytest.warns(DrawnNumberWarning, match=r"_Noisy draws numbers by random and numpy\.random .*torch\.rand"):
        model = from_torch(_Noisy(), (x,))
    torch.testing.assert_close(model(x), _Noisy()(x))
