"""Convolutions, pooling, batch normalization and resizing: their gradients against central differences and torch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tvm import relax
from tvm.relax.op import nn

from autocast import Model, vm
from autocast.errors import TrainingModeWarning
from autocast.frontend import from_torch
from autocast.training import MSE, SGD, Trainer
from tests.training.gradients.checking import Run, arguments, check_gradients, programs_of
from tests.training.test_architectures import assert_gradients_close, gradients_of

#: Calls, and the shapes of their operands.
CONVOLUTIONS: dict[str, tuple[Callable[..., relax.Expr], tuple[tuple[int, ...], ...]]] = {
    "one axis": (lambda x, w: nn.conv1d(x, w, 2, 1), ((2, 3, 9), (4, 3, 3))),
    "stride that leaves a row": (lambda x, w: nn.conv2d(x, w, 2, 1), ((1, 2, 6, 7), (3, 2, 3, 3))),
    "dilation and two paddings": (
        lambda x, w: nn.conv2d(x, w, (1, 2), (2, 0, 0, 1), (2, 1)),
        ((1, 2, 7, 6), (2, 2, 2, 3)),
    ),
    "groups": (lambda x, w: nn.conv2d(x, w, 1, 1, groups=2), ((1, 4, 5, 4), (4, 2, 3, 3))),
    "each channel on its own": (lambda x, w: nn.conv2d(x, w, 1, 1, groups=3), ((1, 3, 5, 4), (3, 1, 3, 3))),
    "transposed": (lambda x, w: nn.conv2d_transpose(x, w, 2, 1, 1), ((1, 3, 4, 3), (3, 2, 3, 3))),
    "transposed, one axis": (lambda x, w: nn.conv1d_transpose(x, w, 2), ((1, 3, 4), (3, 2, 3))),
}

POOLING: dict[str, tuple[Callable[..., relax.Expr], tuple[int, ...]]] = {
    "largest": (lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), (1, 2, 7, 6)),
    "largest, one axis": (lambda x: nn.max_pool1d(x, 3, 2, 1), (1, 2, 9)),
    "largest, three axes": (lambda x: nn.max_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0)), (1, 2, 4, 5, 4)),
    "average, three axes": (lambda x: nn.avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0)), (1, 2, 4, 5, 4)),
    "average, three axes, cut": (
        lambda x: nn.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        (1, 2, 4, 5, 4),
    ),
    "average": (lambda x: nn.avg_pool2d(x, (2, 3), (2, 1), (1, 1)), (1, 2, 6, 5)),
    "average, padding counted": (lambda x: nn.avg_pool2d(x, 2, 2, 1, count_include_pad=True), (1, 2, 6, 6)),
    "average, padding counted, rounded up": (
        lambda x: nn.avg_pool2d(x, 3, (2, 3), 1, ceil_mode=True, count_include_pad=True),
        (1, 2, 6, 6),
    ),
    "average, one axis, padding counted, rounded up": (
        lambda x: nn.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        (1, 2, 6),
    ),
    "average, one axis": (lambda x: nn.avg_pool1d(x, 2, 2), (1, 2, 8)),
    "average of everything": (lambda x: nn.adaptive_avg_pool2d(x, 1), (1, 2, 5, 4)),
    "average of uneven windows": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2)), (1, 2, 7, 5)),
}


#: Calls of both, and their data.
CALLS = {
    **{name: (build, arguments(0, *shapes)) for name, (build, shapes) in CONVOLUTIONS.items()},
    **{name: (build, arguments(0, shape)) for name, (build, shape) in POOLING.items()},
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Run]:
    return programs_of(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_central_differences(programs: dict[str, Run], name: str) -> None:
    check_gradients(programs[name], *CALLS[name][1])


class Images(torch.nn.Module):
    """Every kind of layer that a convolutional net has, small enough for a test."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.SiLU(),
            nn.Conv2d(32, 16, 1),
            nn.Conv2d(16, 16, 3, padding=1, groups=2),
            nn.ConvTranspose2d(16, 16, 3, 2, 1, 1),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.Upsample(scale_factor=2),
            nn.Upsample(scale_factor=1.5, mode="bilinear"),
            nn.AvgPool2d(2),
            nn.Flatten(2),
            nn.Conv1d(16, 8, 3, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("training", [False, True])
def test_a_net_of_images_has_the_gradients_of_torch(training: bool) -> None:
    torch.manual_seed(0)
    module, x = Images().train(training), torch.randn(2, 3, 30, 34)
    model = from_torch(module, (x,))
    pure = model.mod.clone()
    pure["main"] = model.main.without_attr("updates") if training else model.main
    actual = gradients_of(model.replace(mod=pure), x)
    loss = module(x).square().mean()
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    expected = {"loss": loss.detach().numpy(), **gradients}
    # A bias before batch normalization in training mode has no gradient but rounding.
    assert_gradients_close(actual, expected)


def test_maxima_of_dilated_windows_have_the_gradients_of_torch() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.MaxPool2d(2, 2, 1, dilation=2))
    x = torch.randn(2, 2, 9, 6)
    actual = gradients_of(from_torch(module, (x,)), x)
    loss = module(x).square().mean()
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    assert_gradients_close(actual, {"loss": loss.detach().numpy(), **gradients})


def test_running_statistics_move_towards_those_of_the_batch() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.BatchNorm2d(16), 2 * torch.randn(4, 16, 5, 6) + 1
    with pytest.warns(TrainingModeWarning):
        executable = vm.compile(from_torch(module, (x,)), "cpu")
    executable(x)
    expected = module(x), module.running_mean, module.running_var
    for name, tensor in (("running_mean", expected[1]), ("running_var", expected[2])):
        np.testing.assert_allclose(executable.state[name].numpy(), tensor.numpy(), rtol=1e-5, atol=1e-6)


class _Sampled(torch.nn.Module):
    """Samples images where two of their channels say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.tanh(x[:, :2].permute(0, 2, 3, 1))
        return torch.nn.functional.grid_sample(x, places, align_corners=False)


class _Each(torch.nn.Module):
    """A number of what each of several layers makes of images, each with a convolution of its own: side by side."""

    def __init__(self, layers: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict(
            {name: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), layer) for name, layer in layers.items()}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(layer(x).flatten() - 1).square().mean() for layer in self.layers.values()])


def test_batches_of_any_size_have_the_gradients_of_torch() -> None:
    module = _Each(
        {
            "pooled": torch.nn.AdaptiveAvgPool2d(1),
            "pooled to windows": torch.nn.AdaptiveAvgPool2d((3, 2)),
            "repeated": torch.nn.Upsample(scale_factor=2),
            "resized": torch.nn.Upsample(size=(5, 11), mode="bilinear"),
            "cut windows": torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            "rows": torch.nn.Sequential(torch.nn.Flatten(2), torch.nn.AdaptiveAvgPool1d(4)),
            "sampled": _Sampled(),
        }
    )
    model = from_torch(module, (torch.randn(4, 3, 8, 6),), dynamic={"n": ("*", 0, 0, 8)})
    _check_against_torch(model, module, [torch.randn(count, 3, 8, 6) for count in (1, 4, 7)])


def test_images_of_any_size_have_the_gradients_of_torch() -> None:
    module = _Each(
        {
            "means": torch.nn.AdaptiveAvgPool2d(1),
            "maxima with equals": torch.nn.Sequential(torch.nn.Hardtanh(-0.2, 0.2), torch.nn.AdaptiveMaxPool2d(1)),
            "maxima of windows with equals": torch.nn.Sequential(_Rounded(), torch.nn.AdaptiveMaxPool2d((3, 2))),
            "reflected": torch.nn.ReflectionPad2d(1),
            "replicated": torch.nn.ReplicationPad2d((1, 0, 2, 1)),
            "every second window": torch.nn.Conv2d(4, 4, 3, stride=(2, 3), padding=1, groups=2),
            "windows": torch.nn.AdaptiveAvgPool2d((3, 2)),
            "cut windows": torch.nn.AvgPool2d(2, 2, ceil_mode=True),
            "cut windows of half": torch.nn.Sequential(
                torch.nn.Conv2d(4, 4, 2, stride=2), torch.nn.AvgPool2d(2, 2, ceil_mode=True)
            ),
            "repeated": torch.nn.Upsample(scale_factor=(3, 2)),
            "nearest": torch.nn.Upsample(size=(5, 11)),
            "linear": torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        }
    )
    model = from_torch(module, (torch.randn(2, 3, 8, 6),), dynamic={"h": ("*", 2, 1, 64), "w": ("*", 3, 1, 64)})
    _check_against_torch(model, module, [torch.randn(2, 3, *size) for size in ((8, 6), (5, 13), (2, 3))])


class _Rounded(torch.nn.Module):
    """Whole numbers, with the gradients of what they were."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x.round() - x).detach()


class _Part(torch.nn.Module):
    """Some of the rows."""

    def __init__(self, *bounds: int | None) -> None:
        super().__init__()
        self.rows = slice(*bounds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.rows]


class _Half(torch.nn.Module):
    """The second half of the columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., x.shape[-1] // 2 :]


def test_slices_of_images_of_any_size_have_the_gradients_of_torch() -> None:
    module = _Each(
        {
            "first": _Part(0, 1),
            "last": _Part(-1, None),
            "all but the first": _Part(1, None),
            "all but the last": _Part(None, -1),
            "every second": _Part(1, None, 2),
            "every third": _Part(None, None, 3),
            "second half": _Half(),
        }
    )
    model = from_torch(module, (torch.randn(2, 3, 8, 6),), dynamic={"h": ("*", 2, 3, 64), "w": ("*", 3, 2, 64)})
    _check_against_torch(model, module, [torch.randn(2, 3, *size) for size in ((8, 6), (5, 13), (3, 2))])


def _check_against_torch(model: Model, module: _Each, batches: list[torch.Tensor]) -> None:
    rate = 0.1 * len(module.layers)  # the loss is the mean over them
    trainer, module = Trainer(model, MSE(), SGD(), learning_rate=rate), copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), rate)
    for x in batches:
        outputs = module(x)
        labels = torch.randn_like(outputs)
        loss = torch.nn.functional.mse_loss(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step((x, labels)) == pytest.approx(loss.item(), rel=1e-4)
    reached = copy.deepcopy(module)
    trainer.to_torch(reached)
    torch.testing.assert_close(reached.state_dict(), module.state_dict(), rtol=1e-4, atol=1e-5)
