"""Gradients in mixed precision, beside torch.autocast's: errors against torch in float64."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gradient_errors import TOLERANCE, measure

_lstm = pytest.param(
    "lstm",
    marks=pytest.mark.skipif(
        not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="torch has no LSTM of bfloat16 on this processor"
    ),
)


@pytest.mark.parametrize("name", ["bert", "llama", "resnet", _lstm])
def test_gradients_in_bfloat16_are_as_exact_as_those_of_torch_autocast(name: str) -> None:
    found = measure(name, (("ours", "bfloat16"), ("torch", "bfloat16")))
    assert found["ours bfloat16"].total <= TOLERANCE * found["torch bfloat16"].total
