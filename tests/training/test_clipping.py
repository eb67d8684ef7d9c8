"""Gradients are clipped by their norm together, as torch does it."""

from __future__ import annotations

import pytest
import torch

from autocast import vm
from autocast.training.losses import MSE
from autocast.training.optimizers import SGD
from autocast.training.step import training_step
from tests.training.modules import batches, imported_network, network, rate


@pytest.mark.parametrize("clip_norm", [1e-3, 0.3, 1e3])
@pytest.mark.parametrize("loss_scaling", [None, 1000.0])
def test_steps_with_clipped_gradients_end_where_torch_ends(clip_norm, loss_scaling):
    step = training_step(imported_network(), MSE(), SGD(), clip_norm=clip_norm, loss_scaling=loss_scaling)
    executable, module = vm.compile(step), network()
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for x, y in batches(4):
        executable(x, y, rate(0.5))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x), y).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
    for name, value in module.named_parameters():
        torch.testing.assert_close(torch.from_dlpack(executable.state[name]), value.detach(), rtol=1e-5, atol=1e-6)
