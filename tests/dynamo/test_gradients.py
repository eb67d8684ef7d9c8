"""Gradients of small modules under `torch.compile(backend="autocast")` are torch's, operator by operator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import dynamo


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class _Of(nn.Module):
    """A function of an input and a linear layer."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer, x)


class _Square(torch.autograd.Function):
    """Has a backward that is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * grad * x


def _without_gradients(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        factor = layer(x)
    return layer(x) * factor


def _in_place(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y[:, :2] = 0
    return y.tanh_()


def _attention(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(layer(x), x, layer(x), is_causal=True)


def _images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2, bias=False),
        nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
        nn.Flatten(2),
        nn.Conv1d(4, 3, 3, stride=2, padding=1),
    )


_ROWS, _IMAGES = (3, 6), (2, 3, 9, 9)

#: The modules, and the shapes of their inputs.
_MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (2, 4, 15, 16)),
    "layer_norm": (lambda: nn.Sequential(nn.LayerNorm((3, 6)), nn.LayerNorm(6, elementwise_affine=False)), (2, 3, 6)),
    "norms of channels": (lambda: _images(nn.GroupNorm(2, 4), nn.Tanh(), nn.BatchNorm2d(4, affine=False)), _IMAGES),
    "batch_norm, fixed": (lambda: _images(nn.BatchNorm2d(4)).eval(), _IMAGES),
    "pools": (lambda: _images(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1), nn.AdaptiveAvgPool2d(2)), _IMAGES),
    "activations": (
        lambda: nn.Sequential(nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.LeakyReLU(), nn.ELU(), nn.ReLU()),
        _ROWS,
    ),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.Linear(6, 6), nn.LogSoftmax(0)), _ROWS),
    "attention": (lambda: _Of(_attention), (2, 2, 5, 6)),
    "detach": (lambda: _Of(lambda layer, x: layer(x) * layer(x).detach()), _ROWS),
    "no_grad": (lambda: _Of(_without_gradients), _ROWS),
    "a function with its own backward": (lambda: _Of(lambda layer, x: _Square.apply(layer(x))), _ROWS),
    "writes": (lambda: _Of(_in_place), _ROWS),
    "constants": (lambda: _Of(lambda layer, x: layer(x).gather(1, torch.tensor([[0], [1], [3]]))), _ROWS),
    "views": (lambda: _Of(lambda layer, x: (x, layer(x).t(), x.t())), _ROWS),
}


def _results(module: nn.Module, called: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, then the gradients of the input and of the parameters, then buffers."""
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    outputs = called(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    sum((y * torch.randn(y.shape, generator=generator)).sum() for y in outputs).backward()
    gradients = [x.grad] if x.is_floating_point() else []
    return [*(y.detach() for y in outputs), *gradients, *(p.grad for p in module.parameters()), *module.buffers()]


def _check(module: nn.Module, x: torch.Tensor) -> None:
    plain = copy.deepcopy(module)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    for ours, theirs in zip(_results(module, compiled, x), _results(plain, plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.stride() == theirs.stride()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
@pytest.mark.parametrize("name", _MODULES)
def test_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    make, shape = _MODULES[name]
    _check(make(), torch.randn(shape))


def test_rows_for_padding_learn_nothing() -> None:
    _check(nn.Embedding(10, 4, padding_idx=1), torch.tensor([[1, 2, 2], [9, 0, 1]]))
