"""`dynamic="auto"`: a call with a size that was not imported has the model imported again, once for each dimension."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.errors import InputError, ReimportWarning
from type_hints import CustomTypeHint, full


class Tower(nn.Module):
    """Two inputs with a common batch, weights of a fixed width, and at most nine positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 8)
        self.register_buffer("positions", torch.randn(9, 6))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """(batch, length, 6), (batch, length) to (batch, length, 8)."""
        return self.linear(x + self.positions[: x.shape[1]]) * scale[..., None]


def _inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, length, 6), torch.randn(batch, length)


def _model(batch: int = 1, length: int = 4) -> autocast.Model:
    return autocast.from_torch(Tower().eval(), _inputs(batch, length), dynamic="auto")


def test_each_dimension_is_imported_again_once() -> None:
    executable = vm.compile(_model())
    reimported = []
    for shape in [(1, 4), (3, 4), (5, 4), (1, 7), (2, 1), (4, 9), (1, 4)]:
        inputs = _inputs(*shape)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = executable(*inputs)
        torch.testing.assert_close(result, Tower()(*inputs))
        reimported += [shape] * len(said)
        assert all(warning.category is ReimportWarning for warning in said)
    assert reimported == [(3, 4), (1, 7)]


def test_inputs_with_the_same_sizes_share_the_dimension_until_they_have_others() -> None:
    class Apart(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(0) * y.mean(0)

    executable = vm.compile(autocast.from_torch(Apart(), (torch.ones(2), torch.ones(2)), dynamic="auto"))
    with pytest.warns(ReimportWarning, match="input x has size 5 along axis 0, imported for 2"):
        executable(torch.ones(5), torch.ones(5))
    assert [spec.shape for spec in executable.signature.inputs] == [("axis0",), ("axis0",)]
    x, y = torch.randn(6), torch.randn(3)
    with pytest.warns(ReimportWarning):
        result = executable(x, y)
    torch.testing.assert_close(result, Apart()(x, y))


def test_casts_are_made_again_as_they_were_with_the_rules_of_that_time() -> None:
    with CustomTypeHint({"matmul": full(2)}):
        untouched = amp.autocast(_model())
    for model, casts in ((untouched, 0), (amp.autocast(_model()), 1)):
        executable = vm.compile(model)
        inputs = _inputs(3, 4)
        with pytest.warns(ReimportWarning):
            result = executable(*inputs)
        exact = Tower().double()(*(value.double() for value in inputs))
        error = (result - exact).abs().max()
        assert (error > 1e-5) == bool(casts)


@pytest.mark.filterwarnings("ignore::autocast.errors.TrainingModeWarning")
def test_state_goes_along() -> None:
    module = nn.BatchNorm1d(3).train()
    executable = vm.compile(autocast.from_torch(module, (torch.randn(4, 3),), dynamic="auto"))
    reference = nn.BatchNorm1d(3).train()
    for batch in (4, 4, 6, 2):
        x = torch.randn(batch, 3) + 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReimportWarning)
            torch.testing.assert_close(executable(x), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.from_dlpack(executable.state["running_mean"]), reference.running_mean)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.randn(1, 4, 7), torch.randn(1, 4)), "cannot be imported with that dimension dynamic"),
        ((torch.randn(1, 4, 6), torch.randn(1, 3)), "cannot be imported with that dimension dynamic"),
        ((torch.randn(1, 4), torch.randn(1, 4)), "Give it 3 axes"),
        ((torch.randn(1, 4, 6).double(), torch.randn(1, 4)), "Convert it"),
        ((torch.randn(1, 4, 6),), "expected 2"),
    ],
)
def test_what_is_wrong_for_other_reasons_is_an_error_each_time_and_changes_nothing(inputs: Any, message: str) -> None:
    executable = vm.compile(_model())
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            executable(*inputs)
    right = _inputs(1, 4)
    torch.testing.assert_close(executable(*right), Tower()(*right))


def test_sizes_beyond_the_bounds_of_the_module_are_an_error() -> None:
    executable = vm.compile(_model())
    with pytest.warns(ReimportWarning), pytest.raises(InputError, match="expected axis1 in 1 to 9"):
        executable(*_inputs(1, 10))


def test_profiles_and_memory_are_of_the_inputs_that_they_are_given() -> None:
    model, inputs = _model(), _inputs(64, 9)
    small = vm.get_peak_memory(model, "cpu", _inputs(1, 4))
    with pytest.warns(ReimportWarning):
        assert vm.get_peak_memory(model, "cpu", inputs) > small
    assert vm.profile_vm_model(model, "cpu", inputs, warmup=0, number=1, repeat=1)[0] > 0


def test_a_changed_module_or_other_parameters_are_not_imported_again() -> None:
    model = _model()
    assert model.reimport is not None
    assert model.replace(output_names=("y",)).reimport is not None
    assert model.replace(params=dict(model.params)).reimport is None
    assert model.replace(mod=model.mod).reimport is None
