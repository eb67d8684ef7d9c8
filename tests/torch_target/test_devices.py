"""All that a module makes is on the device of its inputs; held against fake tensors, as there is no GPU here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import autocast


class _Watched(fx.Interpreter):
    """Runs a module, and notes where all values are that it computes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.places: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.places |= {str(tensor.device) for tensor in pytree.tree_leaves(value) if isinstance(tensor, torch.Tensor)}
        return value


def _on_a_gpu(module: fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> set[str]:
    """Where all is that a module computes, with what it holds and takes on a GPU."""
    with FakeTensorMode():

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda:0")

        for part in module.modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    assert tensor is not None
                    held[name] = nn.Parameter(moved(tensor)) if held is part._parameters else moved(tensor)
        watched = _Watched(module)
        watched.run(*map(moved, inputs))
        return watched.places


class _Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x)
        return result


X = torch.linspace(-1, 1, 12).reshape(3, 4)

MODULES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "positions": (_Of(lambda x: x + torch.arange(x.shape[0])[:, None]), X),
    "zeros": (_Of(lambda x: torch.cat([x, torch.zeros(x.shape[0], 3)], 1)), X),
    "one_hot": (_Of(lambda x: F.one_hot(x, 7).float() * x.shape[0]), torch.arange(3)),
    "causal": (_Of(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), X.reshape(3, 2, 1, 2)),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_made_of_sizes_that_vary_is_where_the_inputs_are(name: str) -> None:
    module, x = MODULES[name]
    ours = autocast.to_torch(autocast.from_torch(module, (x,), dynamic={"rows": ("*", 0, 2, 64)}))
    assert _on_a_gpu(ours, (x,)) == {"cuda:0"}


class _Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None],
            lambda x: x * 2,
            (x,),
        )


def test_so_is_what_a_branch_makes() -> None:
    """Which fake tensors cannot run."""
    ours: Any = autocast.to_torch(autocast.from_torch(_Branches(), (X,), dynamic={"rows": ("*", 0, 2, 64)}))
    assert "here = x.device" in ours.true_0.code and "device = here" in ours.true_0.code
    assert "device" not in ours.false_0.code
