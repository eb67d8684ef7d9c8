"""Tensors that share memory in torch share it between the graphs of a function, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autocast import dynamo


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=dynamo.backend, options={"policy": "mp0"}, **options)


def _break() -> None:
    torch._dynamo.graph_break()


def _base_of_a_view(x: torch.Tensor) -> Any:
    y = x.clone()
    v = y.view(2, -1)
    _break()
    y += 1
    return y, v


def _view_of_an_input(x: torch.Tensor) -> Any:
    v, z = x.view(2, -1), x * 2
    _break()
    v += 1
    return x.clone(), v, z


def _chunks(x: torch.Tensor) -> Any:
    a, b = (x * 2).chunk(2)
    c = a[1:].t()
    _break()
    a += b
    return a, b, c * 1


def _detached(x: torch.Tensor) -> Any:
    y = x * 2
    v = y.detach()
    _break()
    v += 1
    return y * 1


def _expanded(x: torch.Tensor) -> Any:
    y = x.sum(1, keepdim=True)
    wide = y.expand(-1, 5)
    _break()
    y += 1
    return wide * 1


def _real_part(x: torch.Tensor) -> Any:
    y = torch.complex(x, x * 2)
    real, conjugate = y.real, y.conj()
    _break()
    real += 1
    return torch.view_as_real(y) * 1, conjugate.imag * 1


def _bits_of_an_input(x: torch.Tensor) -> Any:
    bits = x.t().view(torch.int32)
    _break()
    bits.zero_()
    return x + 1


def _empty(x: torch.Tensor) -> Any:
    y = x[:0] * 2
    v = y.view(-1)
    _break()
    v += 1
    return y, v


_FUNCTIONS = [
    _base_of_a_view,
    _view_of_an_input,
    _chunks,
    _detached,
    _expanded,
    _real_part,
    _bits_of_an_input,
    _empty,
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "varying"])
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_a_write_behind_a_break_is_seen_by_whoever_shares(function: Any, dynamic: bool) -> None:
    compiled = _compiled(function, dynamic=dynamic)
    for rows in (4, 8) if dynamic else (4,):
        given = torch.randn(rows, rows)
        x, own = given.clone(), given.clone()
        torch.testing.assert_close(compiled(x), function(own))
        assert torch.equal(x, own)


def test_a_part_of_a_larger_tensor_is_given_back_as_a_view_of_it() -> None:
    larger = torch.randn(10, 6)
    got = _compiled(lambda x: (x[1:], x * 2))(larger[3:8])
    got[0].zero_()
    assert not larger[4:8].any()
    assert larger[3].all()


def test_inputs_of_which_one_is_written_may_be_parts_of_one_tensor() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    compiled = _compiled(function)
    compiled(torch.zeros(3), torch.zeros(3))
    whole = torch.zeros(4)
    assert torch.equal(compiled(whole[:3], whole[1:]), torch.tensor([2.0, 2, 0]))


def test_a_weight_that_is_written_through_a_view_is_read_anew() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = self.weight.view(-1)
            _break()
            flat.mul_(2)
            return x @ self.weight + flat.sum()

    module, expected, x = Grows(), Grows(), torch.randn(3, 4)
    compiled = _compiled(module)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected(x))


def _of_values(x: torch.Tensor) -> Any:
    places = x.nonzero()
    columns = places.t()
    chosen = torch.zeros(int(x.abs().sum()) + 2) + 1
    rest = chosen[1:]
    _break()
    columns += 1
    rest += 1
    return places * 1, chosen * 1


def _of_an_input_by_values(x: torch.Tensor) -> Any:
    rest = x[: int(x.abs().max()) + 1]
    _break()
    rest += 1
    return x * 1


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")  # of slices whose ends values decide
@pytest.mark.parametrize("function", [_of_values, _of_an_input_by_values])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_memory_of_sizes_that_values_decide_is_shared(function: Any) -> None:
    compiled = _compiled(function)
    for scale in (0.5, 2.0):
        x = torch.randn(4, 6).mul(scale).clamp(-2.5, 2.5)
        own = x.clone()
        torch.testing.assert_close(compiled(x), function(own))
        assert torch.equal(x, own)
