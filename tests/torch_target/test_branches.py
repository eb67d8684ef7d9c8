"""Branches, views of memory, and operators that were left to torch, as torch modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp
from autocast.errors import FallbackWarning, UnsupportedError
from autocast.operators import TABLE
from autocast.torch_target.rows import ROWS
from autocast.training import MSE, SGD, training_step


@I.ir_module
class Nested:
    """One branch returns what it was given, and one size is said by no tensor that a branch reads."""

    @R.function
    def main(flag: R.Tensor((), "bool"), other: R.Tensor((), "bool"), x: R.Tensor(("n", 4), "float32")) -> R.Tensor(
        ("n", 4), "float32"
    ):
        n = T.int64()
        if flag:
            a = R.exp(x)
            b = R.add(a, a)
            r = b
        else:
            if other:
                r = x
            else:
                r = R.broadcast_to(R.const(2.5, "float32"), R.shape([n, 4]))
        y = R.multiply(r, R.const(2.0, "float32"))
        return y


def _expected(flag: bool, other: bool, x: torch.Tensor) -> torch.Tensor:
    return 2 * (2 * x.exp() if flag else x if other else torch.full_like(x, 2.5))


_WAYS = [(True, True), (False, True), (False, False)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eagerly", "compiled"])
def test_each_branch_is_taken_when_its_condition_holds(compiled: bool) -> None:
    module: Any = autocast.to_torch(autocast.from_relax(Nested))
    module = torch.compile(module, backend="eager", fullgraph=True) if compiled else module
    x = torch.randn(3, 4)
    for flag, other in _WAYS:
        got = module(torch.tensor(flag), torch.tensor(other), x)
        torch.testing.assert_close(got, _expected(flag, other, x))
    torch._dynamo.reset()


def test_branches_are_exported_with_sizes_that_vary() -> None:
    module = autocast.to_torch(autocast.from_relax(Nested))
    examples = (torch.tensor(True), torch.tensor(True), torch.randn(3, 4))
    program = torch.export.export(module, examples, dynamic_shapes=({}, {}, {0: torch.export.Dim("n")}))
    x = torch.randn(5, 4)
    for flag, other in _WAYS:
        got = program.module()(torch.tensor(flag), torch.tensor(other), x)
        torch.testing.assert_close(got, _expected(flag, other, x))


def test_onnxruntime_takes_branches(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")
    ort = pytest.importorskip("onnxruntime", reason="make test installs it")
    session = ort.InferenceSession(autocast.to_onnx(autocast.from_relax(Nested), tmp_path / "branches.onnx"))
    x = torch.randn(5, 4)
    for flag, other in _WAYS:
        (got,) = session.run(None, {"flag": np.array(flag), "other": np.array(other), "x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), _expected(flag, other, x))


def test_onnxruntime_takes_two_choices_each_of_which_computes_something(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")
    ort = pytest.importorskip("onnxruntime", reason="make test installs it")

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda y: y.exp().sum() * y, lambda y: y + y.sum(), (x,))
            return torch.cond(y.sum() > 1, lambda y: y.sin().sum() + y, lambda y: y * y.sum(), (y,))

    model = autocast.from_torch(Net().eval(), (torch.randn(3, 4),))
    session = ort.InferenceSession(autocast.to_onnx(model, tmp_path / "choices.onnx"))
    for x in (torch.rand(3, 4), -torch.rand(3, 4)):
        (got,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), Net()(x))


@I.ir_module
class Chosen:
    """A product in one branch, in which a parameter is read."""

    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor((3, 4), "float32"), w: R.Tensor((4, 4), "float32")):
        R.func_attr({"num_input": 2})
        if flag:
            r = R.matmul(x, w)
        else:
            r = R.multiply(R.sin(x), R.sum(w))
        return r


def test_a_training_step_goes_back_through_the_branch_that_was_taken() -> None:
    w = torch.randn(4, 4)
    model = autocast.from_relax(Chosen, {"w": w.numpy()})
    step = training_step(amp.autocast(model, policy="mp0"), MSE(), SGD())
    x, labels, rate = torch.randn(3, 4), torch.randn(3, 4), torch.tensor(0.5)
    for flag in (True, False):
        module: Any = autocast.to_torch(step)
        with torch.no_grad():
            module(torch.tensor(flag), x, labels, rate)
        trained = w.clone().requires_grad_()
        result = x @ trained if flag else x.sin() * trained.sum()
        nn.functional.mse_loss(result, labels).backward()
        torch.testing.assert_close(module.w, (trained - 0.5 * trained.grad).detach(), rtol=1e-4, atol=1e-5)


def test_casts_in_branches_are_casts() -> None:
    model = amp.autocast(autocast.from_relax(Chosen, {"w": np.ones((4, 4), "float32")}))
    module: Any = autocast.to_torch(model)
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(torch.tensor(True), x), x.sum(1, keepdim=True).expand(3, 4), rtol=2e-2, atol=5e-2)
    assert "bfloat16" in module.code + module.true_0.code


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "int32"}, lambda x: x.view(torch.int32)),
        ({"shape": (2, 3), "relative_byte_offset": 8}, lambda x: x.reshape(-1)[2:8].reshape(2, 3)),
        ({"shape": (24, 2), "dtype": "int16"}, lambda x: x.view(torch.int16).reshape(24, 2)),
    ],
)
def test_views_of_memory_are_the_same_bytes(options: dict[str, Any], expected: Any) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.memory.view(x, **options)))
    value = torch.randn(4, 6)
    assert torch.equal(autocast.to_torch(autocast.from_relax(builder.get()))(value), expected(value))


class _Left(nn.Module):
    """Two operators that nothing here computes: one of several results, one of a size that varies."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sign, logarithm = torch.linalg.slogdet(x.mT @ x + torch.eye(4))
        return sign * logarithm, torch.special.airy_ai(x).new_full((x.shape[0],), 2.0)


def test_operators_that_were_left_to_torch_are_these() -> None:
    with pytest.warns(FallbackWarning):
        model = autocast.from_torch(_Left(), (torch.randn(3, 4),), dynamic={"rows": ("x", 0)})
    assert model.fallbacks
    x = torch.randn(5, 4)
    for got, expected in zip(autocast.to_torch(model)(x), _Left()(x), strict=True):
        torch.testing.assert_close(got, expected)


@torch.library.custom_op("autocast_tests::scaled", mutates_args=())
def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@_scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_that_a_user_defined_in_torch_are_these() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.autocast_tests.scaled(x, 2.5) + 1

    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning):
        model = autocast.from_torch(Net(), (x,))
    torch.testing.assert_close(autocast.to_torch(model)(x), Net()(x))


def test_inputs_of_one_name_are_told_apart() -> None:
    builder = relax.BlockBuilder()
    both = [relax.Var("x", relax.TensorType((2,), "float32")) for _ in range(2)]
    with builder.function("main", both):
        builder.emit_func_output(builder.emit(relax.op.subtract(*both)))
    module = autocast.to_torch(autocast.from_relax(builder.get()))
    assert module(torch.ones(2), torch.zeros(2)).tolist() == [1, 1]


def test_what_has_no_row_is_what_the_page_lists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    missing = [name.removeprefix("relax.") for name in TABLE if name.removeprefix("relax.") not in ROWS]
    models = [name for name in missing if name.startswith(("nn.", "vision."))]
    assert models and all(f"`{name.removeprefix('vision.')}`" in page for name in models)


def test_code_that_a_module_came_with_is_refused_by_its_name() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        called = relax.op.call_dps_packed("somebody.kernel", [x], out_ty=relax.TensorType((4,), "float32"))
        builder.emit_func_output(builder.emit(called))
    with pytest.raises(UnsupportedError, match=r"call_dps_packed of somebody\.kernel \(1\)"):
        autocast.to_torch(autocast.from_relax(builder.get()))


def test_a_branch_that_returns_sizes_is_refused() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor(("n", 4), "float32")):
            n = T.int64()
            if flag:
                r = (R.exp(x), R.shape([n]))
            else:
                r = (x, R.shape([n]))
            return r

    with pytest.raises(UnsupportedError, match=r"a branch returns .*R\.Shape.*expected tensors"):
        autocast.to_torch(autocast.from_relax(Module))


def test_functions_that_others_may_call_are_written_out_where_main_calls_them() -> None:
    @I.ir_module
    class Module:
        @R.function
        def inner(x: R.Tensor(("k", 4), "float32")) -> R.Tensor(("k", 4), "float32"):
            y = R.exp(x)
            return y

        @R.function
        def outer(x: R.Tensor(("k", 4), "float32")) -> R.Tensor(("k", 4), "float32"):
            y = Module.inner(x)
            z = R.add(y, x)
            return z

        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor(("n", 4), "float32"):
            a = Module.outer(x)
            if flag:
                b = Module.inner(a)
            else:
                b = Module.outer(a)
            return b

    module = autocast.to_torch(autocast.from_relax(Module))
    x = torch.linspace(-2, 0, 12).reshape(3, 4)
    a = x.exp() + x
    torch.testing.assert_close(module(x, torch.tensor(True)), a.exp())
    torch.testing.assert_close(module(x, torch.tensor(False)), a.exp() + a)


def test_functions_whose_parameters_say_less_than_what_they_are_given_are_written_out() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def flat(x: R.Tensor("float32", ndim=2)) -> R.Tensor("float32", ndim=1):
            k, m = T.int64(), T.int64()
            y = R.match_cast(x, R.Tensor((k, m), "float32"))
            z = R.reshape(R.exp(y), R.shape([k * m]))
            return z

        @R.function
        def main(x: R.Tensor((3, 4), "float32"), y: R.Tensor((2, 5), "float32")):
            a = Module.flat(x)
            b = Module.flat(y)
            return a, b

    x, y = torch.randn(3, 4), torch.randn(2, 5)
    for got, given in zip(autocast.to_torch(autocast.from_relax(Module))(x, y), (x, y), strict=True):
        torch.testing.assert_close(got, given.exp().reshape(-1))
