"""A module that `to_torch` makes loads the state of the module that was imported: all of its names, and no others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast
from autocast import amp


class _Tied(nn.Module):
    """A weight with two names, a layer that is not read, and statistics with a count that evaluation does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.unread = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _imported() -> tuple[nn.Module, nn.Module]:
    module = _Tied().eval()
    return module, autocast.to_torch(amp.autocast(autocast.from_torch(module, (X,)), preset="mp0"))


def test_all_names_of_the_modules_state_load_strictly() -> None:
    _, ours = _imported()
    other = _Tied().eval()
    ours.load_state_dict(other.state_dict())
    torch.testing.assert_close(ours(X), other(X))


def test_a_tied_weight_loads_by_any_of_its_names() -> None:
    module, ours = _imported()
    state = {name: 2 * value for name, value in module.state_dict().items()}
    del state["first.weight"]
    ours.load_state_dict(state)
    torch.testing.assert_close(ours.get_parameter("first.weight"), state["last.weight"])


def test_a_name_that_the_module_has_not_is_unexpected() -> None:
    module, ours = _imported()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*wrong"):
        ours.load_state_dict({**module.state_dict(), "wrong": X})


def test_a_state_whose_tied_weights_differ_is_refused() -> None:
    module, ours = _imported()
    with pytest.raises(RuntimeError, match=r"last\.weight and first\.weight are one tensor in the model, and differ"):
        ours.load_state_dict({**module.state_dict(), "last.weight": torch.ones(4, 4)})
