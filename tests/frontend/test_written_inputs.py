"""What a torch module writes into its inputs is written into what is passed to the model, wherever it runs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast import amp, from_torch, runtime, to_onnx, to_torch, vm
from autocast.errors import ImportModelError, InputError, UnsupportedError
from autocast.model.value import Model
from autocast.training import MSE, SGD, Trainer


class _Writes(nn.Module):
    """Writes into its second input, returns what that was before, and a product of what it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = total.clone()
        total[1:].add_(x[1:])
        return before, self.linear(total)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return _Writes().eval()


@pytest.fixture(scope="module")
def model(module: nn.Module) -> Model:
    return from_torch(module, _inputs())


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)


def _check(call: Any, module: nn.Module, *, tolerance: float = 1e-5) -> None:
    """A call writes and returns what the module does."""
    ours, theirs = _inputs(), _inputs()
    with torch.no_grad():
        expected, got = module(*theirs), call(*ours)
    for one, other in zip((*got, *ours), (*expected, *theirs), strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_a_compiled_model_writes_into_the_inputs_that_it_is_given(model: Model, module: nn.Module) -> None:
    assert model.written == ("total",)
    assert model.num_results == 2
    executable = vm.compile(model)
    _check(executable, module)
    _check(executable, module)
    strided = torch.zeros(4, 3).t().copy_(_inputs()[1])
    executable(_inputs()[0], strided)
    torch.testing.assert_close(strided[1:], _inputs()[1][1:] + _inputs()[0][1:])


def test_numpy_arrays_are_written_and_those_that_cannot_be_are_refused(model: Model) -> None:
    x, total = (value.numpy() for value in _inputs())
    executable = vm.compile(model)
    before, _ = executable(x, total)
    np.testing.assert_array_equal(before, _inputs()[1].numpy())
    np.testing.assert_allclose(total[1:], (_inputs()[1] + _inputs()[0]).numpy()[1:], rtol=1e-6)
    total.flags.writeable = False
    one_row = torch.zeros(1, 4).expand(3, 4)
    for run in (executable, vm.compile(model, device="torch:cpu", mode="eager")):
        for refused in (total, one_row):
            with pytest.raises(InputError, match="cannot be written"):
                run(x, refused)


def test_casts_files_and_torch_write_into_inputs(model: Model, module: nn.Module, tmp_path: Any) -> None:
    low = amp.autocast(model)
    assert str(low.main.ret_ty.fields[-1].dtype) == "float32"
    _check(vm.compile(low), module, tolerance=3e-2)
    _check(runtime.load(vm.compile(model).export(tmp_path / "writes.autocast")), module)
    model.save(tmp_path / "writes.model")
    _check(autocast.load(tmp_path / "writes.model"), module)
    _check(to_torch(model), module)
    _check(vm.compile(model, device="torch:cpu", mode="eager"), module)
    _check(autocast.wrap(copy.deepcopy(module)), module, tolerance=3e-2)
    with pytest.raises(UnsupportedError, match="writes into its inputs"):
        to_onnx(model, tmp_path / "writes.onnx")


class _Exchanges(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)


def test_a_module_that_returns_nothing_may_write_and_inputs_may_be_exchanged() -> None:
    x, y = torch.zeros(3), torch.ones(3)
    executable = vm.compile(from_torch(_Exchanges(), (x.clone(), y.clone())))
    assert executable(x, y) == ()
    assert x.tolist() == [1, 1, 1]
    assert y.tolist() == [0, 0, 0]


class _Shifts(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:, 1:] = x[:, :-1].clone()
        y.narrow(0, 0, 1).sub_(0.5)
        return y[:, -1] + x[0, 0]


def test_parts_of_inputs_whose_sizes_vary_are_written() -> None:
    """What an input becomes has sizes such as `1 + (b - 1)`."""
    example = torch.zeros(4, 5), torch.zeros(4, 5)
    executable = vm.compile(from_torch(_Shifts(), example, dynamic={"a": [("x", 0), ("y", 0)], "b": ("x", 1)}))
    for sizes in ((4, 5), (7, 9)):
        ours, theirs = ((torch.arange(sizes[0] * sizes[1]).reshape(sizes) * 1.0, torch.ones(sizes[0], 5)) for _ in "ab")
        torch.testing.assert_close(executable(*ours), _Shifts()(*theirs))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)


def test_training_a_model_that_writes_into_its_inputs_leaves_the_batch_alone() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    x, labels = torch.randn(3, 4), torch.randn(3, 2)
    given = x.clone()
    trainer = Trainer(from_torch(module, (x.clone(),)), MSE(), SGD(), learning_rate=0.1)
    loss = float(trainer.step((given, labels)))
    assert loss == pytest.approx(float(nn.functional.mse_loss(module(x.clone()), labels).detach()), rel=1e-5)
    assert torch.equal(given, x)


def test_inputs_that_share_what_is_written_are_refused(model: Model) -> None:
    whole = torch.randn(4, 4)
    with pytest.raises(InputError, match=r"writes into its input 1, of which input 0"):
        model(whole[:3], whole[1:])
    assert vm.compile(model)(whole[:1].expand(3, 4), torch.zeros(3, 4))


def test_examples_may_be_views_of_one_another(module: nn.Module) -> None:
    whole = torch.randn(3, 4)
    _check(from_torch(module, (whole, whole)), module)
    _check(from_torch(module, (whole, whole.view(12).view(3, 4))), module)


class _PastAutograd(nn.Module):
    """Reads and writes `.data`, as layers do that clip or normalize their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = nn.functional.normalize(self.weight.data, dim=0)
        self.scale.data.clamp_(min=0.0)
        return x.data @ self.weight * self.scale


def test_writes_past_autograd_are_updates() -> None:
    module, x = _PastAutograd().eval(), torch.randn(2, 4)
    model = from_torch(copy.deepcopy(module), (x,))
    assert sorted(model.updated) == ["scale", "weight"]
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(x), module(x))


def test_data_of_another_shape_is_refused() -> None:
    class Grows(_PastAutograd):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale.data = torch.cat([self.scale.data, self.scale.data])
            return x

    with pytest.raises(ImportModelError, match=r"`\.data` becomes a torch\.float32 of shape \(6,\)"):
        from_torch(Grows(), (torch.randn(2, 4),))
