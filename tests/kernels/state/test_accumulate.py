"""Gradients are added to the state that they become a part of, and need no memory of their own."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp, vm
from autocast.ir import dtype_of, is_op, static_shape
from autocast.kernels.state.accumulate import accumulate_gradients
from autocast.model import Model
from autocast.training import CrossEntropy, training_step
from autocast.training.optimizers import SGD, Adam, Optimizer
from autocast.vm.memory import MIB
from tests.kernels.modules import planned_main

op = relax.op
SHAPE = (32, 32)
ROWS, WIDTH = 1000, 48
RATE = 0.05


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        g: R.Tensor((8, 32), "float32"),
        numbers: R.Tensor((8,), "int64"),
        p: R.Tensor(SHAPE, "float32"),
        m: R.Tensor(SHAPE, "float32"),
    ):
        R.func_attr({"num_input": 5, "num_state": 2})
        with R.dataflow():
            d = R.permute_dims(R.matmul(R.permute_dims(x), g))
            t = R.grad.take_backward(x, p, numbers, axis=0)
            s = R.add(d, t)
            s1 = R.add(s, R.multiply(R.const(0.1, "float32"), p))
            n = R.add(R.multiply(R.const(0.9, "float32"), m), s1)
            q = R.subtract(p, n)
            R.output(n, q)
        return (x, q, n)


@I.ir_module
class After:
    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        g: R.Tensor((8, 32), "float32"),
        numbers: R.Tensor((8,), "int64"),
        p: R.Tensor(SHAPE, "float32"),
        m: R.Tensor(SHAPE, "float32"),
    ):
        R.func_attr({"num_input": 5, "num_state": 2})
        with R.dataflow():
            d = R.permute_dims(R.matmul(R.permute_dims(x), g))
            t = R.grad.take_backward(x, p, numbers, axis=0)
            a = R.multiply(R.const(0.1, "float32"), p)
            b = R.multiply(R.const(0.9, "float32"), m)
            n1 = R.add(b, d)
            n2 = R.add(n1, t)
            n = R.add(n2, a)
            q = R.subtract(p, n)
            R.output(n, q)
        return (x, q, n)


def test_state_comes_first_then_products_then_lookups_then_the_rest():
    after = accumulate_gradients(Before)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, After)


def stateful(build, *, state: int = 1) -> tvm.IRModule:
    """A main of the input x and the state p, which `build(emit, x, p)` replaces."""
    x, p = (relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "xp")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, p], attrs={"num_input": 2, "num_state": state} if state else {}):
        with builder.dataflow():
            new = builder.emit_output(build(builder.emit, x, p))
        builder.emit_func_output(relax.Tuple([x, new]))
    return builder.get()


def _read_twice(emit, x, p):
    gradient = emit(op.matmul(x, x))
    return op.add(op.add(p, gradient), op.multiply(gradient, gradient))


LEFT_ALONE = {
    "no state": (lambda emit, x, p: op.add(p, op.matmul(x, x)), 0),
    "a gradient that no kernel adds": (lambda emit, x, p: op.add(p, op.sum(x, axis=0)), 1),
    "a gradient that is read twice": (_read_twice, 1),
    "a gradient that is a function of the state": (lambda emit, x, p: op.add(x, op.matmul(x, p)), 1),
    "a difference": (lambda emit, x, p: op.subtract(p, op.matmul(x, x)), 1),
    "state that is scaled by a tensor": (lambda emit, x, p: op.add(op.multiply(x, p), op.matmul(x, x)), 1),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_not_a_sum_of_state_and_gradients_is_left_alone(case):
    build, state = LEFT_ALONE[case]
    mod = stateful(build, state=state)
    assert accumulate_gradients(mod).same_as(mod)


def test_the_debug_report_says_what_is_added_to_which_state(monkeypatch, capsys):
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    accumulate_gradients(Before)
    assert "accumulate takes n: 1 x relax.matmul, 1 x relax.grad.take_backward, 1 terms of m" in capsys.readouterr().err


class Tied(nn.Module):
    """A language model of one layer, whose embedding is its last layer too; or has an embedding of its own."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(ROWS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, ROWS)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(self.embedding(ids))))


class Unrolled(nn.Module):
    """A recurrent net, whose weight is a factor of several products."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x @ self.weight)
        return self.head(x)


def ids() -> torch.Tensor:
    return torch.randint(0, ROWS, (4, 5), generator=torch.Generator().manual_seed(1))


NETWORKS = {
    "tied": (Tied, ids, ROWS * WIDTH),
    "untied": (lambda: Tied(tied=False), ids, ROWS * WIDTH),
    "unrolled": (Unrolled, lambda: torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), 64 * 64),
}

OPTIMIZERS = {
    "momentum": SGD(momentum=0.9),
    "decay": SGD(momentum=0.9, weight_decay=0.1),
}

WAYS = [("tied", "momentum"), ("tied", "decay"), ("untied", "decay"), ("unrolled", "momentum")]


@cache
def step(kind: str, optimizer: Optimizer, *, low: bool = False) -> Model:
    make, inputs, _ = NETWORKS[kind]
    model: Model = training_step(autocast.from_torch(make().eval(), (inputs(),)), CrossEntropy(), optimizer)
    return amp.autocast(model) if low else model


@cache
def compiled(kind: str, optimizer: Optimizer) -> tuple[vm.Executable, tuple[torch.Tensor, ...]]:
    x = NETWORKS[kind][1]()
    labels = torch.zeros(x.shape if kind != "unrolled" else x.shape[:1], dtype=torch.int64)
    return vm.compile(step(kind, optimizer)), (x, labels, torch.tensor(RATE))


@pytest.mark.parametrize(("kind", "optimizer"), WAYS)
def test_steps_are_those_of_torch(kind, optimizer):
    value = OPTIMIZERS[optimizer]
    executable, (x, labels, rate) = compiled(kind, value)
    module = NETWORKS[kind][0]()
    other = torch.optim.SGD(module.parameters(), RATE, momentum=value.momentum, weight_decay=value.weight_decay)
    for _ in range(3):
        other.zero_grad()
        logits = module(x)
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        loss.backward()
        other.step()
        torch.testing.assert_close(executable(x, labels, rate), loss.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in module.named_parameters():
        state = torch.from_dlpack(executable.state[name])
        torch.testing.assert_close(state, parameter.detach(), rtol=1e-4, atol=1e-6, msg=name)
        momentum = torch.from_dlpack(executable.state[f"momentum/{name}"])
        buffer = other.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(momentum, buffer, rtol=1e-4, atol=1e-6, msg=name)


def calls(model: Model) -> list[relax.Call]:
    main = planned_main(model)
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Call)]


def stored(model: Model) -> int:
    """The elements of the largest float32 tensor that a step allocates."""
    tensors = [call for call in calls(model) if is_op(call, "relax.memory.alloc_tensor")]
    return max(math.prod(static_shape(tensor)) for tensor in tensors if dtype_of(tensor) == "float32")


@pytest.mark.parametrize(
    ("kind", "optimizer", "low"),
    [*((*way, False) for way in WAYS), *((kind, "momentum", True) for kind in NETWORKS)],
)
def test_no_gradient_of_a_weight_is_stored(kind, optimizer, low):
    model = step(kind, OPTIMIZERS[optimizer], low=low)
    assert stored(model) < NETWORKS[kind][2]
    kernels = [call.op.name_hint for call in calls(model) if isinstance(call.op, tvm.ir.GlobalVar)]
    assert any(name.startswith("product") and name.endswith("_in_place") for name in kernels)


@pytest.mark.parametrize("optimizer", [Adam(), SGD(momentum=0.9, nesterov=True)])
def test_an_optimizer_that_reads_a_gradient_twice_has_it_stored(optimizer):
    assert stored(step("tied", optimizer)) == ROWS * WIDTH


def test_a_step_takes_less_memory_by_the_gradient():
    def taken(optimizer: Optimizer) -> float:
        executable, inputs = compiled("tied", optimizer)
        return vm.trace_memory(executable, "cpu", inputs).intermediates

    saved = taken(SGD(momentum=0.9, nesterov=True)) - taken(SGD(momentum=0.9))
    assert saved > 0.9 * ROWS * WIDTH * 4 / MIB
