"""`torch.cond`, `while_loop`, `scan` and `map`: both ways, any number of turns, and what cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop

from autocast import amp, from_torch, get_peak_memory, runtime, vm
from autocast.errors import GradientError, ImportModelError
from autocast.training import MSE, SGD, Trainer
from autocast.vm.flops import calc_model_gflops


class Two(nn.Module):
    """Two layers, and what is computed with them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def _branches(m: Two, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: m.a(y) + torch.arange(8.0), lambda y: nn.functional.gelu(m.b(y)), (x,))


def _nested(m: Two, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(
        x.sum() > 0,
        lambda y: torch.cond(y.max() > 2, lambda z: m.a(z) + 1, lambda z: m.b(z) + 1, (y,)),
        lambda y: m.b(y) * 2,
        (x,),
    ) + m.a(x)


def _several(m: Two, x: torch.Tensor) -> Any:
    a, b = torch.cond(x.sum().reshape(1) > 0, lambda y: (m.a(y), y.sum()), lambda y: (m.b(y), y.max()), (x,))
    return a * b, torch.cond(x.sum() > 1, lambda y: m.a(y), lambda y: m.b(y), (x,))


def _left_to_torch(m: Two, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, torch.linalg.svdvals, lambda y: torch.linalg.svdvals(y) * 2, (x,))


def _turns(m: Two, x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, torch.tanh(m.a(x))), (start, x))


def _branches_in_turns(m: Two, x: torch.Tensor) -> Any:
    def turn(i: torch.Tensor, x: torch.Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda y: m.a(y), lambda y: m.b(y), (x,))

    return while_loop(lambda i, x: i < 4, turn, (torch.tensor(0), x))


def _turns_in_turns(m: Two, x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, _turns(m, x)[1].clone()), (torch.tensor(0), x))


def _turns_in_a_branch(m: Two, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: _turns(m, y)[1].clone(), lambda y: m.b(y), (x,))


def _rows(m: Two, x: torch.Tensor) -> Any:
    last, rows = scan(lambda c, y: (torch.tanh(m.a(c) + y), c * 2), torch.zeros(8), x)
    _, back = scan(lambda c, y: (c + y, c * y), torch.ones(8), x, reverse=True)
    return last, rows, back, torch_map(lambda y: m.b(y).relu(), x)


PROGRAMS = (
    _branches,
    _nested,
    _several,
    _turns,
    _branches_in_turns,
    _turns_in_turns,
    _turns_in_a_branch,
    _rows,
)


def _error(got: Any, want: Any) -> float:
    pairs = zip(*([x] if isinstance(x, torch.Tensor) else x for x in (got, want)), strict=True)
    return max(float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm()) for a, b in pairs)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_way_is_taken_as_torch_takes_it(program: Callable[..., Any]) -> None:
    module, x = Two(program).eval(), torch.rand(4, 8)
    model = from_torch(module, (x,))
    mixed = amp.autocast(model)
    for inputs in (x, 5 * x, -x):
        with torch.no_grad():  # torch's scan knows no gradient
            want = module(inputs)
        assert _error(model(inputs), want) < 1e-6
        assert _error(mixed(inputs), want) < 2e-2


@pytest.mark.parametrize("program", [_branches, _nested, _turns, _turns_in_a_branch])
def test_sizes_may_vary(program: Callable[..., Any]) -> None:
    module = Two(program).eval()
    model = from_torch(module, (torch.rand(4, 8),), dynamic={"n": ("*", 0, 1, 64)})
    for n in (1, 3, 9):
        x = torch.randn(n, 8)
        assert _error(model(x), module(x)) < 1e-6


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
def test_what_is_left_to_torch_is_left_in_a_branch_too() -> None:
    module, x = Two(_left_to_torch).eval(), torch.rand(4, 8)
    model = from_torch(module, (x,))
    assert model.fallbacks
    for inputs in (x, -x):
        assert _error(model(inputs), module(inputs)) < 1e-6


@pytest.mark.parametrize(
    "condition",
    [
        lambda n: n > 3,
        lambda n: torch.sym_not(n > 3),
        lambda n: n * 2 == 6,
    ],
)
def test_sizes_decide_which_branch_is_taken(condition: Callable[[Any], Any]) -> None:
    module = Two(lambda m, x: torch.cond(condition(x.shape[0]), lambda y: y + 1, lambda y: y - 1, (x,))).eval()
    model = from_torch(module, (torch.rand(4, 8),), dynamic={"n": ("*", 0, 1, 64)})
    for n in (1, 3, 4):
        x = torch.randn(n, 8)
        torch.testing.assert_close(model(x), module(x))


def _counted(m: Two, x: torch.Tensor, n: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.5 + 1), (torch.tensor(0), x))


def test_a_loop_goes_round_as_often_as_its_inputs_say() -> None:
    module, x = Two(_counted).eval(), torch.rand(8)
    model = from_torch(module, (x, torch.tensor(3)))
    for n in (0, 1, 2, 7):
        torch.testing.assert_close(model(x, torch.tensor(n)), module(x, torch.tensor(n)))
    turns, last = model(x, torch.tensor(20_000))  # more calls than a stack has room for
    assert turns == 20_000
    torch.testing.assert_close(last, torch.full((8,), 2.0))


def test_a_loop_is_measured_as_if_it_went_round_once_or_twice() -> None:
    model, inputs = from_torch(Two(_turns).eval(), (torch.rand(4, 8),)), [torch.rand(4, 8)]
    assert calc_model_gflops(model, "cpu", inputs) == 2 * 4 * 8 * 8 / 1e9
    assert 0 < get_peak_memory(model, "cpu", inputs) < 1


def test_sizes_that_no_tensor_of_a_loop_has_are_passed_to_it() -> None:
    def program(m: Two, x: torch.Tensor) -> Any:
        step = lambda i, y: (i + 1, y * x.shape[1] + x.shape[0])  # noqa: E731
        return while_loop(lambda i, y: i < x.shape[0], step, (torch.tensor(0), torch.ones(3)))

    module = Two(program).eval()
    model = from_torch(module, (torch.rand(4, 8),), dynamic={"n": ("*", 0, 1, 64)})
    for n in (1, 5):
        x = torch.rand(n, 8)
        torch.testing.assert_close(model(x), module(x))


@pytest.mark.parametrize(
    ("program", "output", "message"),
    [
        (_branches, 0, r"computes by cond, .* where gradients stop \(detach, no_grad\)"),
        (_rows, 1, r"computes by map_impl, scan, .* where gradients stop \(detach, no_grad\)"),
        (_turns, 1, "none may call itself"),
    ],
)
def test_a_gradient_that_may_have_to_stop_within_is_refused(
    program: Callable[..., Any], output: int, message: str
) -> None:
    model = from_torch(Two(program).train(), (torch.rand(4, 8),))
    with pytest.raises(GradientError, match=message):
        Trainer(model, MSE(output=output), SGD(), learning_rate=0.1)


def test_a_file_of_a_compiled_model_has_its_branches_and_loops(tmp_path: Any) -> None:
    module, x = Two(_branches_in_turns).eval(), torch.rand(4, 8)
    vm.compile(from_torch(module, (x,))).export(tmp_path / "loops.autocast")
    assert _error(runtime.load(tmp_path / "loops.autocast")(-x), module(-x)) < 1e-6


REFUSED = {
    "random numbers": (
        lambda m, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + torch.rand(8)), (torch.tensor(0), x)),
        r"while_loop .*it draws random numbers.*draw them before",
    ),
    "many rows": (
        lambda m, x: torch_map(lambda y: m.a(y), x.reshape(1, -1, 8).expand(75, 4, 8).reshape(300, 8)),
        r"map_impl .*it goes over 300 rows, expected .*at most 256.*while_loop",
    ),
    "a tensor of a number within a part": (
        lambda m, x: torch.cond(x.sum() > 0, lambda y: _counted(m, y, y.sum())[1].clone(), lambda y: y * 2, (x,)),
        r"torch cannot split.*torch\.zeros or torch\.full",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_part_says_what_to_write(name: str) -> None:
    program, message = REFUSED[name]
    with pytest.raises(ImportModelError, match=message):
        from_torch(Two(program).eval(), (torch.rand(4, 8),))
