"""Modules that decide by small tensors that no state has, as audio codecs do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autocast
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
            x = x if self.stride < 9 else -x
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
    def __init__(self, persistent: bool = False, writes: bool = False) -> None:
        super().__init__()
        self.register_buffer("started", torch.Tensor([True]), persistent)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), False)
        self.register_buffer("scale", torch.tensor(2.0))
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes and self.calls < 9:
            self.calls.add_(1)
        return x * self.scale if self.started else x


@pytest.mark.parametrize("persistent", [False, True])
def test_a_flag_is_known_and_state_is_not(persistent: bool) -> None:
    module, x = Started(persistent).eval(), torch.randn(7)
    model = from_torch(module, (x,))
    assert torch.equal(model(x), module(x))
    assert list(model.params) == ["scale"]
    assert list(module._buffers) == ["started", "calls", "scale"]
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(Decides().eval(), (x,))


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.level > 0.2 else x


class Starts(nn.Module):
    """Sets its scale by the first batch, and says so in its state."""

    def __init__(self, started: bool) -> None:
        super().__init__()
        self.register_buffer("started", torch.tensor(started))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.started:
            self.scale.copy_(x.abs().max())
            self.started.fill_(True)
        return x * self.scale


def test_a_flag_that_a_call_sets_is_no_constant() -> None:
    x = torch.randn(7)
    model = from_torch(Starts(True).eval(), (x,))
    assert torch.equal(model(x), x * 2)
    autocast.to_torch(model).load_state_dict(Starts(True).state_dict())
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(Starts(False).eval(), (x,))


def test_a_buffer_that_is_written_into_is_not_known() -> None:
    module = Started(writes=True).eval()
    with pytest.raises(ImportModelError, match="data-dependent"):
        from_torch(module, (torch.randn(7),))
    assert int(module.calls) == 0


class Columns(nn.Module):
    """Columns by the flags that there are of each, as in TabNet; and by a table, as are those of sizes of windows."""

    offset = 0

    def __init__(self) -> None:
        super().__init__()
        self.numeric = torch.tensor([True, False, True])
        self.register_buffer("table", torch.tensor([[2, 1], [3, 0]]), persistent=False)
        self.offset = torch.tensor(1.0)  # beside a number of the class's
        self.categories = nn.Embedding(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = [x[:, i, None] if flag else self.categories(x[:, i].long()) for i, flag in enumerate(self.numeric)]
        columns += [x[:, :1] * factor if scales else x[:, 1:2] - factor for factor, scales in self.table]
        columns += [x[:, :width] for width, _ in self.table.tolist()]
        return torch.cat(columns, 1) + self.offset


def test_flags_of_columns_are_known() -> None:
    module, x = Columns().eval(), torch.randint(0, 4, (3, 3)).float()
    before = list(module.__dict__), list(module._buffers)
    model = from_torch(module, (x,), fallback="error")
    assert torch.equal(model(x), module(x))
    assert list(model.params) == ["categories.weight"]
    assert (list(module.__dict__), list(module._buffers)) == before


@pytest.mark.parametrize("persistent", [False, True])
def test_state_of_a_wrapped_module_is_what_it_is_now(persistent: bool) -> None:
    module, x = Started(persistent).eval(), torch.ones(3)
    wrapped = autocast.wrap(module, policy="mp0")
    with torch.no_grad():
        for scale in (2.0, 5.0):
            module.scale.fill_(scale)
            assert torch.equal(wrapped(x), scale * x)
        module.started.fill_(False)
        assert torch.equal(wrapped(x), x)
