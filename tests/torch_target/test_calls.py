"""A graph's calls, run from a list."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import fx, nn

from autocast.torch_target.calls import Calls


class Odd(nn.Module):
    """Arguments within lists, tuples and slices, by name, and results that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rows = x.size(0)
        both = torch.cat([x, y * 2, self.weight], dim=0)
        x.exp()
        part = both[1 : rows + 1, ..., None]
        return part.sum(dim=-1, keepdim=False), [y]


def test_calls_are_those_of_the_interpreter() -> None:
    module = fx.symbolic_trace(Odd())
    x, y = torch.randn(2, 4), torch.randn(5, 4)
    calls = Calls(module, module.graph)
    for _ in range(2):
        got, expected = calls(x, y), fx.Interpreter(module).run(x, y)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert got[1][0] is y


def test_results_live_until_they_were_read_for_the_last_time() -> None:
    born: list[weakref.ref[torch.Tensor]] = []

    def made(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        assert sum(one() is not None for one in born) <= 1
        born.append(weakref.ref(result := x + 1))
        return result

    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(5):
        value = graph.call_function(made, (value,))
    graph.output(value)
    result = Calls(nn.Module(), graph)(torch.zeros(3))
    assert torch.equal(result, torch.full((3,), 5.0))
    del result
    gc.collect()
    assert all(one() is None for one in born)
