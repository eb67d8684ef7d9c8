"""The architectures run at every size, whichever dimensions are known when they are called.

`python -m tests.dynamic_sizes` checks every kind in every dtype; here each occurs with some.
"""

from __future__ import annotations

import pytest
import torch

from tests.dynamic_sizes import TOLERANCES, errors


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("bert", "length", torch.float32),
        ("gpt2", "both", torch.bfloat16),
        ("gpt2 of width 768", "length", torch.float16),
        ("llama", "batch", torch.float16),
        ("t5", "both", torch.float16),
        ("vit", "batch", torch.bfloat16),
        ("resnet", "length", torch.bfloat16),
        ("lstm", "batch", torch.float32),
        ("unet", "both", torch.float32),
    ],
)
def test_an_architecture_is_right_at_every_size(name: str, kind: str, dtype: torch.dtype) -> None:
    found = list(errors(name, kind, dtype))
    assert found
    assert [(sizes, error) for sizes, error in found if not error <= TOLERANCES[dtype]] == []
