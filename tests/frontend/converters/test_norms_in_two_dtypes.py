"""Norms whose data and parameters are in two dtypes, as those of bfloat16 data that keep float32 parameters are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autocast
from autocast import training

LOW = torch.bfloat16
X = torch.randn(2, 6, 4, 6, generator=torch.Generator().manual_seed(0))
WIDE = torch.linspace(0.5, 2, 6)


class Norm(nn.Module):
    """One function of the input and of a vector of six, as a parameter."""

    def __init__(self, function, vector: torch.Tensor) -> None:
        super().__init__()
        self.function, self.vector = function, nn.Parameter(vector, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm."""
        return self.function(x, self.vector)


NORMS = {
    "layer_norm": lambda x, w: F.layer_norm(x, (6,), w, w),
    "layer_norm without bias": lambda x, w: F.layer_norm(x, (6,), w),
    "group_norm": lambda x, w: F.group_norm(x, 2, w, w),
    "batch_norm": lambda x, w: F.batch_norm(x, w, w, w, w),
    "rms_norm": lambda x, w: F.rms_norm(x, (6,), w),
}


@pytest.mark.parametrize("name", NORMS)
def test_low_data_and_float32_parameters_are_normalized_as_torch_does(name):
    module = Norm(NORMS[name], WIDE).eval()
    found = autocast.from_torch(module, (X.to(LOW),))(X.to(LOW))
    assert found.dtype == LOW
    torch.testing.assert_close(found, module(X.to(LOW)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NORMS)
def test_float32_data_and_low_parameters_are_normalized_in_float32(name):
    # torch.export takes all of them, torch itself on a CPU only the last.
    found = autocast.from_torch(Norm(NORMS[name], WIDE.to(LOW)).eval(), (X,))(X)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, NORMS[name](X, WIDE.to(LOW).float()), rtol=1e-5, atol=1e-5)


def test_a_batch_norm_of_low_data_keeps_float32_statistics_in_training():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6).train()
    module = nn.Sequential(norm, nn.Flatten(), nn.Linear(144, 3).to(LOW)).train()
    batch = (X.to(LOW), torch.tensor([0, 2]))
    trainer = training.Trainer(
        autocast.from_torch(module, batch[:1]), training.CrossEntropy(), training.SGD(), learning_rate=0.1
    )
    first = trainer.step(batch)
    norm(batch[0])
    state = trainer.trained().params
    assert {str(state[f"0.{name}"].dtype) for name in ("weight", "running_mean", "running_var")} == {"float32"}
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(state[f"0.{name}"].numpy(), getattr(norm, name), rtol=1e-5, atol=1e-6)
    assert trainer.step(batch) < first
