"""Whole convolutional models: right in float32 and mixed precision, with nothing left between their kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from autocast import Model, amp, compile
from autocast.frontend import from_torch
from autocast.kernels import detect_target, lower
from tests.architectures import ARCHITECTURES, flatten, imported
from tests.kernels.modules import operators


class _Depthwise(nn.Module):
    """An inverted residual with a depthwise convolution and batch_norm, squeezed; then a ConvNeXt block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, stride=4)
        self.widen = nn.Sequential(nn.Conv2d(12, 24, 1, bias=False), nn.BatchNorm2d(24), nn.SiLU())
        self.depthwise = nn.Sequential(nn.Conv2d(24, 24, 3, 1, 1, groups=24, bias=False), nn.BatchNorm2d(24), nn.SiLU())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 6, 1), nn.ReLU(), nn.Conv2d(6, 24, 1))
        self.narrow = nn.Sequential(nn.Conv2d(24, 12, 1, bias=False), nn.BatchNorm2d(12))
        self.large = nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.block = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12))
        self.scale = nn.Parameter(torch.rand(12))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) to (batch, 12)."""
        x = self.stem(image)
        wide = self.depthwise(self.widen(x))
        x = x + self.narrow(wide * torch.sigmoid(self.squeeze(wide)))
        y = self.scale * self.block(self.large(x).permute(0, 2, 3, 1))
        return (x + y.permute(0, 3, 1, 2)).mean((2, 3))


class _Signal(nn.Module):
    """Features of a sound wave: convolutions along one axis, each with a norm and GELU, then a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(1, 16, 10, stride=5), nn.GroupNorm(16, 16), nn.GELU())
        self.rest = nn.Sequential(nn.Conv1d(16, 16, 3, stride=2), nn.GELU(), nn.Conv1d(16, 20, 2, stride=2), nn.GELU())
        self.project = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 8))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """(batch, 1, samples) to (batch, frames, 8)."""
        return self.project(self.rest(self.first(wave)).transpose(1, 2))


#: Models of our own, and their inputs.
_OWN: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "depthwise": lambda: (_Depthwise(), torch.randn(2, 3, 20, 28)),
    "signal": lambda: (_Signal(), torch.randn(2, 1, 400)),
}

#: How many permutations of data each is lowered to.
PERMUTATIONS = {"resnet": 1, "unet": 2, "vit": 0, "depthwise": 1, "signal": 0}


def _built(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name not in _OWN:
        architecture = ARCHITECTURES[name]()
        return architecture.module, architecture.args[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, example = _OWN[name]()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.5, 0.5)
                part.running_var.uniform_(0.5, 1.5)
    return model.eval().requires_grad_(False), example


@cache
def _imported(name: str) -> Model:
    if name not in _OWN:
        return imported(name)
    module, example = _built(name)
    return from_torch(module, (example,))


@pytest.mark.parametrize("name", _OWN)
def test_models_of_any_batch_match_torch(name: str) -> None:
    module, example = _built(name)
    compiled = compile(from_torch(module, (example,), dynamic={"batch": ("*", 0, 1, 8)}))
    image = torch.cat([example, example[:1].flip(-1)])
    assert _error(flatten(compiled(image))[0], module, image) < 1e-5


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_mixed_models_are_as_right_as_torchs(name: str) -> None:
    module, image = _built(name)
    compiled = compile(amp.autocast(_imported(name)))
    with torch.autocast("cpu", torch.bfloat16):
        peer = _error(flatten(module(image))[0], module, image)
    assert _error(flatten(compiled(image))[0], module, image) < 1.5 * peer


@pytest.mark.parametrize("name", [name for name in PERMUTATIONS if name != "vit"])
def test_nothing_is_left_between_the_kernels(name: str) -> None:
    calls = operators(lower(amp.autocast(_imported(name)).mod, detect_target()))
    assert sum("permut" in call or "tir_transpose" in call for call in calls) == PERMUTATIONS[name]
    assert not any("batch_norm" in call or "rsqrt" in call or "conv2d" in call for call in calls)


def test_the_patches_of_a_vision_transformer_are_one_product() -> None:
    calls = operators(lower(_imported("vit").mod, detect_target()))
    assert not any("conv" in call for call in calls)


def _error(output: torch.Tensor, module: nn.Module, image: torch.Tensor) -> float:
    """The relative error against torch in float64."""
    (exact,) = flatten(copy.deepcopy(module).double()(image.double()))
    return float((output.double() - exact).norm() / exact.norm())


class _Segmentation(nn.Module):
    """Maps of one channel: by a convolution of one pixel, by a larger one, transposed, and along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.pixel, self.window = nn.Conv2d(4, 1, 1), nn.Conv2d(4, 1, 3, padding=1)
        self.up, self.along = nn.ConvTranspose2d(4, 1, 2, stride=2), nn.Conv1d(4, 1, 3)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(batch, 1, height, width) to maps of one channel."""
        x = self.features(image)
        gate = torch.sigmoid(self.pixel(x))
        return gate, self.window(x), self.up(x), self.along(x.mean(3)), self.window(x * gate).squeeze(1)


@pytest.mark.parametrize("size", [(1, 1, 5, 6), (1, 1, 3, 1), (1, 1, 3, 7), (2, 1, 4, 1)])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_maps_of_one_channel_keep_their_shape(size: tuple[int, ...], dtype: str | None) -> None:
    module, image = _Segmentation().eval().requires_grad_(False), torch.randn(size)
    model = from_torch(module, (image,))
    got = compile(model if dtype is None else amp.autocast(model, dtype=dtype))(image)
    tolerance = 1e-5 if dtype is None else 16 * torch.finfo(torch.bfloat16).eps
    for ours, expected in zip(got, module(image), strict=True):
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
