"""The architectures run at every size, whichever dimensions are known when they are called.

`python -m tests.dynamic_sizes` checks every kind in every dtype; here some of those that have a length. That batches
vary is tested where models are imported and compiled, of all architectures.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast
from tests.dynamic_sizes import TOLERANCES, errors


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("bert", "length", torch.float32),
        ("gpt2", "both", torch.bfloat16),
        ("gpt2 of width 768", "length", torch.float16),
        ("llama", "batch", torch.float16),
        ("t5", "both", torch.float16),
        ("resnet", "length", torch.bfloat16),
        ("unet", "both", torch.float32),
    ],
)
def test_an_architecture_is_right_at_every_size(name: str, kind: str, dtype: torch.dtype) -> None:
    found = list(errors(name, kind, dtype))
    assert found
    assert [(sizes, error) for sizes, error in found if not error <= TOLERANCES[dtype]] == []


def test_a_convolution_of_a_single_task_takes_any_length() -> None:
    module = nn.Sequential(nn.Conv1d(8, 64, 3, padding=1), nn.GELU(), nn.Conv1d(64, 8, 3, padding=1)).eval()
    model = autocast.from_torch(module, (torch.randn(1, 8, 32),), dynamic={"length": ("*", 2, 3, 64)})
    for length in (3, 17, 64):
        x = torch.randn(1, 8, length)
        with torch.no_grad():
            torch.testing.assert_close(model(x), module(x))
