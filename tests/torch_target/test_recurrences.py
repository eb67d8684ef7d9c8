"""Recurrences as torch modules have gradients, as they are and compiled."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import amp
from autocast.errors import UnsupportedError

X = torch.linspace(-1, 1, 2 * 5 * 4, dtype=torch.float64).reshape(2, 5, 4)


class _Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layers = kind(4, 6, bidirectional=True, batch_first=True, **options)
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x)[0])


def _gradients(module: Any, computed: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
    module.zero_grad()
    computed(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def _module(kind: type[nn.RNNBase], **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _Tagger(kind, **options).double()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"), [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})]
)
def test_gradients_are_those_of_torchs_layers(kind: Any, options: dict[str, Any], compiled: bool) -> None:
    module = _module(kind, **options)
    ours: Any = autocast.to_torch(autocast.from_torch(module, (X,), dynamic={"steps": ("x", 1, 1, 16)}))
    x = torch.cat([X, X], 1)
    got = _gradients(ours, torch.compile(ours, backend="aot_eager") if compiled else ours, x)
    torch.testing.assert_close(got, _gradients(module, module, x))


def test_an_import_before_gradients_are_known_does_not_hide_them() -> None:
    script = """if True:
        import torch, autocast
        module = torch.nn.LSTM(4, 6)
        model = autocast.from_torch(module, (torch.randn(5, 2, 4),))
        compiled = torch.compile(autocast.to_torch(model), backend="aot_eager")
        x = torch.randn(5, 2, 4, requires_grad=True)
        got, expected = (torch.autograd.grad(run(x)[0].sum(), x)[0] for run in (compiled, module))
        torch.testing.assert_close(got, expected)
    """
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.filterwarnings("ignore::autocast.errors.SlowDtypeWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_low_weights_are_near_those_of_wide_ones(kind: Any) -> None:
    module = _module(kind).float()
    ours: Any = autocast.to_torch(amp.autocast(autocast.from_torch(module, (X.float(),))))
    got, expected = (_gradients(one, one, X.float()) for one in (ours, module))
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=0.05, atol=0.02 * float(gradient.abs().max()))


def test_gradients_of_gradients_are_refused() -> None:
    module = _module(nn.GRU)
    ours = autocast.to_torch(autocast.from_torch(module, (X,)))
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="gradients of gradients of an LSTM, GRU or RNN"):
        gradient.sum().backward()
