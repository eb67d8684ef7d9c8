"""A norm that a module has under several names moves the same statistics under each."""

from __future__ import annotations

import copy

import torch
from torch import nn

import autocast
from autocast.training import MSE, SGD, Trainer


def test_a_norm_with_two_names_trains_and_is_evaluated() -> None:
    norm = nn.BatchNorm1d(6)
    module = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6), norm).train()
    reference, x, y = copy.deepcopy(module), torch.randn(8, 6), torch.randn(8, 6)
    trainer = Trainer(autocast.from_torch(module, (x,), fallback="error"), MSE(), SGD(), learning_rate=0.1)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    for step in range(3):
        loss = nn.functional.mse_loss(reference(x + step), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(trainer.step((x + step, y))), loss.detach(), rtol=1e-4, atol=1e-5)
    trainer.to_torch(module)
    torch.testing.assert_close(module.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trainer.trained()(x), reference.eval()(x), rtol=1e-4, atol=1e-4)
    written = autocast.to_torch(autocast.from_torch(module.eval(), (x,)))
    written.load_state_dict(reference.state_dict())
    torch.testing.assert_close(written(x), reference(x))
