"""A model and its trainers, for tables of bad calls."""

from __future__ import annotations

import torch
from torch import nn

from autocast import from_torch
from autocast.training import MSE, SGD, Trainer

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
X = torch.ones(4, 5)
Y = torch.zeros(4, 3)
C = torch.zeros(4, dtype=torch.int64)
M = from_torch(NET, (X,))


def tr(loss=None, opt=None, **options):
    return Trainer(M, loss or MSE(), opt or SGD(), **{"learning_rate": 0.1, **options})
