"""Blocks of `torch.autocast` in a module: where it is off, operators keep the dtypes that the code says."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import autocast
from autocast import amp
from autocast.training import MSE, SGD, training_step


class Blocks(nn.Module):
    """Layers in and around blocks; the first is called outside, too."""

    def __init__(self, device: str = "cpu"):
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(64, 64) for _ in range(5))
        self.device = device

    def forward(self, x):
        x = self.a(x)
        with torch.autocast(self.device, enabled=False):
            x = self.b(x.float())
            with torch.autocast("cpu", torch.bfloat16):
                x = self.c(x)
            with amp.disable_autocast("bfloat16"):
                x = self.d(x.float())
            x = self.e(x)
        return self.a(x)


def _products(model: autocast.Model) -> list[tuple[str, str]]:
    """Which product is low, and who decided."""
    texts = [str(decision) for decision in amp.autocast(model).report.decisions]
    found = [re.search(r"relax\.matmul.*\((low|leave|float32) by (\w+)", text) for text in texts]
    return [(one[1], one[2]) for one in found if one]


EXPECTED = [
    ("low", "rule"),
    ("leave", "region"),
    ("low", "rule"),
    ("low", "region"),
    ("leave", "region"),
    ("low", "rule"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
def test_a_block_is_a_region_and_the_innermost_one_decides(device):
    module, x = Blocks(device).eval(), torch.randn(4, 64)
    model = autocast.from_torch(module, (x,), fallback="error")
    assert _products(model) == EXPECTED
    torch.testing.assert_close(model(x), module(x), rtol=1e-2, atol=1e-2)


def test_a_program_that_was_exported_before_has_its_blocks():
    module, x = Blocks().eval(), torch.randn(4, 64)
    assert _products(autocast.from_torch(torch.export.export(module, (x,)))) == EXPECTED


class Careful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            hidden = self.layer(x.float()).tanh()
            mean, deviation = hidden.mean(-1, keepdim=True), hidden.std(-1, keepdim=True)
        return (hidden - mean) / deviation


@pytest.mark.parametrize("grows", [False, True])
def test_what_is_computed_there_has_no_error(grows):
    module, x = Careful().eval(), torch.randn(8, 64)
    model = autocast.from_torch(module, (x,), dynamic={"batch": ("x", 0)} if grows else None)
    with torch.no_grad():
        for run in (amp.autocast(model), torch.compile(module, backend="autocast"), autocast.wrap(module)):
            torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-5)


def test_its_backward_is_in_it():
    module, x = Careful().train(), torch.randn(8, 64)
    wrapped = autocast.wrap(module)
    wrapped(x).square().sum().backward()
    got = module.layer.weight.grad.clone()
    module.zero_grad()
    module(x).square().sum().backward()
    torch.testing.assert_close(got, module.layer.weight.grad, rtol=1e-4, atol=1e-4)
    step = training_step(autocast.from_torch(Careful().train(), (x,)), MSE(), SGD())
    assert {level for _, level in _products(step)} == {"region"}


class Low(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.layer(x)
        return y.float() + x


@pytest.mark.parametrize("how", ["import", "compile", "wrap"])
def test_what_a_block_makes_low_may_be_read_behind_it(how):
    module, x = Low().eval(), torch.randn(4, 6)
    options = {"policy": "mp0"}
    run = {
        "import": lambda: autocast.from_torch(module, (x,)),
        "compile": lambda: torch.compile(module, backend="autocast", options=options),
        "wrap": lambda: autocast.wrap(module, **options),
    }[how]()
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x), rtol=1e-2, atol=1e-2)
