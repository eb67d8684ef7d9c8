"""Modules that decide by buffers of one element, as audio codecs and quantizers do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast.errors import ImportModelError
from autocast.frontend import from_torch


class Padded(nn.Module):
    """A convolution of whole frames, whose padding is computed of tensors."""

    def __init__(self, kernel: int, stride: int, counts: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, kernel, stride)
        self.register_buffer("stride", torch.tensor(stride), persistent=False)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)
        self.register_buffer("padding", torch.tensor(kernel - stride), persistent=False)
        self.counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        frames = torch.ceil((length - self.stride) / self.stride + 1).to(torch.int64)
        extra = frames * self.stride - length
        if length <= max(self.padding, extra):
            raise ValueError("too short")
        if self.counts:
            self.stride = self.stride + 1
        return self.conv(F.pad(x, (self.padding, extra), "reflect")) * self.scale


@pytest.mark.filterwarnings("ignore:.*will not reflect any changes:UserWarning")
def test_numbers_that_no_state_has_are_known() -> None:
    module = nn.Sequential(Padded(7, 1), nn.ELU(), Padded(4, 2)).eval()
    before = [[*part._buffers.items()] for part in module.modules()]
    model = from_torch(module, (torch.randn(2, 4, 21),), dynamic={"batch": (0, 0, 1, 8)}, fallback="error")
    for batch in (1, 2, 5):
        x = torch.randn(batch, 4, 21)
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-6)
    assert [[*part._buffers.items()] for part in module.modules()] == before


def test_a_number_that_the_module_writes_is_none() -> None:
    module = Padded(4, 2, counts=True).eval()
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(module, (torch.randn(2, 4, 20),))
    assert list(module._buffers) == ["stride", "scale", "padding"]
    assert int(module.stride) == 2


class Started(nn.Module):
    def __init__(self, writes: bool = False) -> None:
        super().__init__()
        self.register_buffer("started", torch.Tensor([True]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.codes, self.writes = nn.Parameter(torch.randn(5, 4)), writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes and self.calls < 9:
            self.calls.add_(1)
        if not self.started:
            raise RuntimeError("no codes")
        return torch.cdist(x, self.codes).argmin(-1)


def test_whether_codes_were_learned_is_known_of_a_module_that_is_evaluated() -> None:
    module, x = Started().eval(), torch.randn(7, 4)
    assert torch.equal(from_torch(module, (x,))(x), module(x))
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(Started().train(), (x,))


def test_a_buffer_that_is_written_into_is_not_known() -> None:
    module = Started(writes=True).eval()
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(module, (torch.randn(7, 4),))
    assert int(module.calls) == 0
