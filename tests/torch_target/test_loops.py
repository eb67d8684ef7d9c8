"""Loops as torch's `while_loop`: how often they go round, what they carry and read, their gradients, and ONNX."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp
from autocast.errors import UnsupportedError


class _Net(nn.Module):
    """A layer, and a loop that reads it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.function = nn.Linear(8, 8), function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def _counted(m: _Net, x: torch.Tensor, n: torch.Tensor) -> Any:
    """A parameter and a size are read, and one state is not."""

    def step(i: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, torch.tanh(m.a(x)) + x.shape[0], y * 0.5 + x

    return while_loop(lambda i, x, y: i < n, step, (torch.tensor(0), x, 2 * x))


def _nested(m: _Net, x: torch.Tensor, n: torch.Tensor) -> Any:
    def inner(i: torch.Tensor, x: torch.Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda x: m.a(x), lambda x: x * 0.5 + 1, (x,))

    def outer(i: torch.Tensor, x: torch.Tensor) -> Any:
        _, y = while_loop(lambda j, _: j < 2, inner, (torch.zeros((), dtype=torch.int64), x))
        return i + 1, y.clone()

    return while_loop(lambda i, _: i < n, outer, (torch.tensor(0), x))


_TIMES = (0, 1, 3)


@cache
def _imported(program: Callable[..., Any]) -> tuple[_Net, autocast.Model, Any]:
    """A net, its model with rows that vary, and that as a torch module."""
    net, examples = _Net(program).eval(), (torch.rand(4, 8), torch.tensor(2))
    model = autocast.from_torch(net, examples, dynamic={"n": ("inputs.0", 0, 2, 64)})
    return net, model, autocast.to_torch(model)


def _matches(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("program", [_counted, _nested])
@pytest.mark.parametrize("compiled", [False, True], ids=["eagerly", "compiled"])
def test_loops_go_round_as_often_as_their_condition_says(program: Callable[..., Any], compiled: bool) -> None:
    net, model, ours = _imported(program)
    ours = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=True) if compiled else ours
    with torch.no_grad():
        for times, rows in zip(_TIMES, (4, 5, 3), strict=True):
            x, n = torch.rand(rows, 8), torch.tensor(times)
            got = ours(x, n)
            _matches(got, net(x, n))
            _matches(model(x, n), got)
    torch._dynamo.reset()


def test_loops_are_exported_with_sizes_that_vary() -> None:
    net, _, ours = _imported(_counted)
    examples = torch.rand(4, 8), torch.tensor(2)
    program = torch.export.export(ours, examples, dynamic_shapes=({0: torch.export.Dim("n", min=2, max=64)}, {}))
    for times in _TIMES:
        x, n = torch.rand(5, 8), torch.tensor(times)
        _matches(program.module()(x, n), net(x, n))


@pytest.mark.parametrize("program", [_counted, _nested])
def test_onnxruntime_takes_loops(program: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")
    ort = pytest.importorskip("onnxruntime", reason="make test installs it")
    net, model, _ = _imported(program)
    session = ort.InferenceSession(autocast.to_onnx(model, tmp_path / "loop.onnx"))
    for times in _TIMES:
        x, n = torch.rand(5, 8), torch.tensor(times)
        got = session.run(None, {"inputs_0": x.numpy(), "inputs_1": n.numpy()})
        with torch.no_grad():
            _matches(map(torch.from_numpy, got), net(x, n))


def test_weights_are_cast_once_before_a_loop_and_states_in_each_step() -> None:
    net, model, _ = _imported(_counted)
    ours: Any = autocast.to_torch(amp.autocast(model, dtype="bfloat16"))
    assert ours.code.count("weight.to(torch.bfloat16)") == 1
    assert ours.step_0.code.count(".to(torch.bfloat16)") == 1
    x, n = torch.rand(4, 8), torch.tensor(3)
    _matches(ours(x, n), net(x, n), rtol=2e-2, atol=2e-2)


def test_code_of_a_loop_has_the_names_of_its_states_and_what_is_read_alone() -> None:
    _, _, ours = _imported(_counted)
    signatures = {part.code.strip().splitlines()[0] for part in (ours.more_0, ours.step_0)}
    assert len(signatures) == 1
    assert "(self, goes_on, state_0, state_1, state_2, " in signatures.pop()


@pytest.mark.parametrize("times", _TIMES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eagerly", "compiled"])
def test_gradients_of_a_loop_are_those_of_its_steps_written_out(times: int, compiled: bool) -> None:
    net, _, ours = _imported(_counted)
    n = torch.tensor(times)
    called = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    x = torch.rand(4, 8, requires_grad=True)
    y, z = x, 2 * x
    for _ in range(times):
        y, z = torch.tanh(net.a(y)) + 4, z * 0.5 + y
    wrt = [x, *net.parameters()]
    want = torch.autograd.grad((y * z).sum(), wrt, allow_unused=True, materialize_grads=True)
    _, y, z = called(x, n)
    got = torch.autograd.grad((y * z).sum(), [x, *ours.parameters()])
    _matches(got, want)
    torch._dynamo.reset()


@I.ir_module
class Written:
    """A loop as one writes it in Relax: it goes on where the condition does not hold, and computes something after."""

    @R.function(private=True)
    def loop(
        i: R.Tensor((), "int64"),
        both: R.Tuple(R.Tensor(("n", 4), "float32"), R.Tensor((), "float32")),
        size: R.Shape(["m"]),
    ) -> R.Tensor(("n", 4, "m"), "float32"):
        n, m = T.int64(), T.int64()
        x = both[0]
        total = R.sum(x)
        ends = R.greater(total, R.const(100.0))
        if ends:
            y = R.expand_dims(R.add(x, both[1]), [2])
            r = R.broadcast_to(y, R.shape([n, 4, m]))
        else:
            z = R.multiply(x, R.const(2.0))
            r = Written.loop(R.add(i, R.const(1, "int64")), (z, R.sum(z)), size)
        return r

    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), like: R.Tensor(("m",), "float32")) -> R.Tensor(("n", 4, "m"), "float32"):
        m = T.int64()
        a = Written.loop(R.const(0, "int64"), (x, R.const(0.0)), R.shape([m]))
        b = Written.loop(R.const(0, "int64"), (R.mean(a, axis=[2]), R.const(1.0)), R.shape([m]))
        return R.add(a, b)


def _written(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    def loop(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        while not x.sum() > 100:
            x, last = 2 * x, 2 * x.sum()
        return (x + last).unsqueeze(2).expand(-1, -1, like.numel())

    a = loop(x, torch.tensor(0.0))
    return a + loop(a.mean(2), torch.tensor(1.0))


@pytest.mark.parametrize("compiled", [False, True], ids=["eagerly", "compiled"])
def test_loops_that_were_written_in_relax_are_loops(compiled: bool) -> None:
    model = autocast.from_relax(Written)
    ours: Any = autocast.to_torch(model)
    ours = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=True) if compiled else ours
    for rows, size in ((3, 2), (5, 3)):
        x, like = torch.rand(rows, 4), torch.zeros(size)
        torch.testing.assert_close(ours(x, like), _written(x, like))
        torch.testing.assert_close(ours(20 * x, like), _written(20 * x, like))
        torch.testing.assert_close(model(x, like), _written(x, like))
    torch._dynamo.reset()


def _refused(module: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        autocast.to_torch(autocast.from_relax(module))


def test_a_function_that_calls_itself_before_its_end_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def depth(x: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
            again = R.less(x, R.const(8.0))
            if again:
                y = Module.depth(R.add(x, x))
                z = R.add(y, R.const(1.0))
            else:
                z = x
            return z

        @R.function
        def main(x: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
            y = Module.depth(x)
            return y

    _refused(Module, r"a call of the function depth, which is no loop: .*the last thing that it does, .* \(2\)")


def test_a_function_that_calls_itself_twice_for_other_than_the_two_halves_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def loop(level: R.Tensor((), "int64"), more: R.Tensor((), "bool"), x: R.Tensor((), "float32")) -> R.Tuple(
            R.Tensor((), "bool"), R.Tensor((), "float32")
        ):
            if more:
                is_last = R.equal(level, R.const(0, "int64"))
                if is_last:
                    y = R.add(x, x)
                    r = (R.less(y, R.const(8.0)), y)
                else:
                    below = R.subtract(level, R.const(1, "int64"))
                    half = Module.loop(below, more, x)
                    r = Module.loop(below, half[0], x)
                s = r
            else:
                s = (more, x)
            return s

        @R.function
        def main(x: R.Tensor((), "float32")):
            y = Module.loop(R.const(2, "int64"), R.const(True, "bool"), x)
            return y

    _refused(Module, r"a call of the function loop, which is no loop")


def test_a_loop_that_changes_a_size_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def grown(x: R.Tensor(("n",), "float32")) -> R.Tensor("float32", ndim=1):
            if R.less(R.sum(x), R.const(8.0)):
                y = Module.grown(R.concat([x, R.const([1.0])]))
                z = R.match_cast(y, R.Tensor("float32", ndim=1))
            else:
                z = R.match_cast(x, R.Tensor("float32", ndim=1))
            return z

        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor("float32", ndim=1):
            y = Module.grown(x)
            return y

    _refused(Module, r"a step of a loop makes a R\.Tensor\(\(n \+ 1,\).* of x, .*expected the same sizes")


def test_a_loop_that_carries_a_size_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def loop(x: R.Tensor((), "float32"), size: R.Shape(ndim=1)) -> R.Shape(ndim=1):
            if R.less(x, R.const(8.0)):
                y = Module.loop(R.add(x, x), R.shape([4]))
            else:
                y = size
            return y

        @R.function
        def main(x: R.Tensor((), "float32")):
            y = R.zeros(Module.loop(x, R.shape([2])), "float32")
            return y

    _refused(Module, r"a loop carries size, a R\.Shape\(ndim=1\), .*expected tensors")


def test_a_loop_over_what_has_no_elements_stays_one_with_casts() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def loop(i: R.Tensor((), "int64"), x: R.Tensor((4, 0), "bfloat16")) -> R.Tensor((4, 0), "bfloat16"):
            cls = Module
            more = R.greater(i, R.const(0, "int64"))
            if more:
                both = R.grad.gated_add_backward(x, x, x)
                left = R.subtract(i, R.const(1, "int64"))
                r = cls.loop(left, R.negative(both[0]))
            else:
                r = x
            return r

        @R.function
        def main(x: R.Tensor((4, 0), "bfloat16")):
            cls = Module
            y = cls.loop(R.const(2, "int64"), x)
            return y

    x = torch.zeros(4, 0, dtype=torch.bfloat16)
    assert autocast.to_torch(amp.autocast(autocast.from_relax(Module)))(x).shape == (4, 0)
