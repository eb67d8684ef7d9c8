"""Training steps that torch's kernels run: state is written by the operators that compute it, and is what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import autocast
from autocast import amp, training, vm
from autocast.torch_target.convert import to_graph
from autocast.torch_target.folding import has_effect
from autocast.torch_target.updates import fuse_updates
from autocast.vm.generic import Generic

#: How many tensors of state an operator writes for each parameter; others are copied.
_OPTIMIZERS: dict[str, tuple[Any, int]] = {
    "sgd": (training.SGD(), 1),
    "momentum": (training.SGD(momentum=0.9), 2),
    "decay": (training.SGD(momentum=0.9, weight_decay=0.1), 2),
    "nesterov": (training.SGD(momentum=0.9, nesterov=True), 1),
    "adam": (training.Adam(), 1),
    "adamw": (training.AdamW(weight_decay=0.1), 1),
}


class _Tied(nn.Module):
    """Reads a weight as it is, transposed, and in a sum of its own shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ self.table.t() + x @ (self.table + 0.5 * self.linear.weight)


def _step(optimizer: Any) -> tuple[autocast.Model, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    x, wanted = torch.randn(5, 6), torch.randn(5, 6)
    step = training.training_step(autocast.from_torch(_Tied(), (x,)), training.MSE(), optimizer)
    return step, (x, wanted, torch.tensor(0.1))


def _graph(step: autocast.Model) -> fx.Graph:
    root, graph = to_graph(step, widened=())
    fuse_updates(root, graph)
    graph.lint()
    return graph


@pytest.mark.parametrize(
    ("name", "mixed"), [*((name, False) for name in _OPTIMIZERS), ("momentum", True), ("adamw", True)]
)
def test_state_is_what_the_compiled_step_makes_of_it(name: str, mixed: bool) -> None:
    optimizer, written = _OPTIMIZERS[name]
    step, inputs = _step(optimizer)
    if mixed:
        step = amp.autocast(step)
    graph = _graph(step)
    assert sum("out" in node.kwargs for node in graph.nodes) == 3 * written
    nodes = len(graph.nodes)
    graph.eliminate_dead_code(has_effect)
    assert len(graph.nodes) == nodes
    generic, compiled = Generic(step), vm.compile(step)
    tolerance = 5e-2 if mixed else 1e-5
    for _ in range(3):
        losses = [torch.from_dlpack(run(*inputs)) for run in (generic, compiled)]
        torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    for key, value in generic.state.items():
        ours = torch.from_dlpack(compiled.state[key])
        torch.testing.assert_close(torch.from_dlpack(value), ours, rtol=tolerance, atol=tolerance)


def test_a_call_that_fails_changes_no_state() -> None:
    step, inputs = _step(training.SGD(momentum=0.9))
    generic = Generic(step)
    calls = generic._calls._calls
    before = {name: torch.from_dlpack(value).clone() for name, value in generic.state.items()}
    first = next(place for place, call in enumerate(calls) if call.keywords and call.keywords[-1][0] == "out")

    def fail(*_: Any) -> None:
        raise MemoryError

    calls[first - 1] = calls[first - 1]._replace(function=fail, keywords=[])
    with pytest.raises(MemoryError):
        generic(*inputs)
    for name, value in generic.state.items():
        assert torch.equal(torch.from_dlpack(value), before[name]), name


def test_state_that_others_read_afterwards_is_copied() -> None:
    """Half of what one tensor becomes is what the other one was."""
    root = nn.Module()
    root.a, root.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 5.0))
    graph = fx.Graph()
    x = graph.placeholder("x")
    a, b = graph.get_attr("a"), graph.get_attr("b")
    new_a = graph.call_function(torch.add, (x, a), {"alpha": 2.0})
    new_b = graph.call_function(torch.add, (graph.call_method("reshape", (a, (3,))), b), {"alpha": 2.0})
    for node in (x, a, b, new_a, new_b):
        node.meta.update(shape=(3,), dtype="float32")
    for state, new in (("a", new_a), ("b", new_b)):
        graph.call_method("copy_", (graph.get_attr(state), graph.call_method("detach", (new,))))
    graph.output(())
    fuse_updates(root, graph)
    assert [node.kwargs["out"].target for node in graph.nodes if "out" in node.kwargs] == ["a"]
    with torch.no_grad():
        fx.GraphModule(root, graph)(torch.ones(3))
    assert torch.equal(root.a, torch.full((3,), 3.0)) and torch.equal(root.b, torch.full((3,), 11.0))
