"""Recurrent layers of torch: one operator for each direction of a layer, whatever their length."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import Model, amp
from autocast.errors import InputError, TrainingModeWarning
from autocast.ir import op_name
from autocast.training import MSE, SGD, Trainer
from tests.frontend.helpers import relative_error


class _Layers(nn.Module):
    """The results of layers, each of which becomes an operator for each of its directions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.gru = nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True), nn.GRU(3, 17, bidirectional=True)
        self.unbiased, self.rnn = nn.GRU(3, 5, bias=False), nn.RNN(3, 5, 2)
        self.relu = nn.RNN(3, 5, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> Any:
        return [layer(x) for layer in self.children()]


def _count(model: Model, name: str) -> int:
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    return sum(op_name(value) == f"relax.{name}" for value in values)


def _agree(got: Any, module: nn.Module, *args: Any, tolerance: float = 1e-6) -> None:
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(module(*args))
    for one, other in zip(torch.utils._pytree.tree_leaves(got), want, strict=True):
        assert one.shape == other.shape
        assert relative_error(one, other) <= tolerance


def test_a_layer_of_any_batch_and_length_is_an_operator_for_each_direction() -> None:
    module = _Layers().eval()
    sizes = {"one": ("*", 0, 1, 64), "other": ("*", 1, 1, 512)}
    model = autocast.from_torch(module, (torch.randn(4, 6, 3),), dynamic=sizes, fallback="error")
    assert {name: _count(model, name) for name in ("nn.lstm", "nn.gru", "nn.rnn")} == {
        "nn.lstm": 4,
        "nn.gru": 2 + 1,
        "nn.rnn": 2 + 1,
    }
    mixed = amp.autocast(model)
    for shape in ((4, 6, 3), (1, 1, 3), (9, 2, 3)):
        x = torch.randn(shape)
        _agree(model(x), module, x)
        _agree(mixed(x), module, x, tolerance=2e-2)


def test_hundreds_of_steps_are_no_more_operators_than_a_few() -> None:
    module = _Layers().lstm.eval()
    few, many = (autocast.from_torch(module, (torch.randn(2, steps, 3),)) for steps in (2, 300))
    sizes = [sum(len(block.bindings) for block in model.main.body.blocks) for model in (few, many)]
    assert sizes[0] == sizes[1] < 60
    x = torch.randn(2, 300, 3)
    _agree(many(x), module, x)


def test_first_states_and_sequences_without_a_batch_are_taken() -> None:
    torch.manual_seed(0)
    module = nn.LSTM(3, 5).eval()
    x, states = torch.randn(4, 2, 3), (torch.randn(1, 2, 5), torch.randn(1, 2, 5))
    _agree(autocast.from_torch(module, (x, states))(x, *states), module, x, states)
    _agree(autocast.from_torch(module, (x[:, 0],))(x[:, 0]), module, x[:, 0])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_projections_are_those_of_an_operator_for_each_direction(bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.LSTM(3, 5, 2, bidirectional=True, proj_size=2, bias=bias).eval()
    states = torch.randn(4, 2, 2), torch.randn(4, 2, 5)
    sizes = {"steps": ("input", 0), "n": [("input", 1), (1, 1), (2, 1)]}
    model = autocast.from_torch(module, (torch.randn(6, 2, 3), states), dynamic=sizes)
    assert _count(model, "nn.lstm") == 4
    for steps, count in ((6, 2), (1, 1), (9, 4)):
        args = torch.randn(steps, count, 3), (torch.randn(4, count, 2), torch.randn(4, count, 5))
        _agree(model(args[0], *args[1]), module, *args)


def _exported(module: nn.Module, x: torch.Tensor) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's export, of the layer's flat weights
        return autocast.from_torch(torch.export.export(module, (x,)))


def test_layers_of_a_program_that_torch_exported_are_operators() -> None:
    module, x = _Layers().eval(), torch.randn(4, 6, 3)
    model = _exported(module, x)
    assert [_count(model, name) for name in ("nn.lstm", "nn.gru", "nn.rnn")] == [4, 2 + 1, 2 + 1]
    _agree(model(x), module, x)
    assert _count(_exported(nn.LSTM(3, 5, 3, dropout=0.5).train(), x), "nn.seeded_dropout") == 2


def test_dropout_between_layers_is_drawn_in_training() -> None:
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 5, 2, dropout=0.5).train(), torch.randn(4, 2, 3)
    model = autocast.from_torch(module, (x,))
    assert _count(model, "nn.seeded_dropout") == 1
    with pytest.warns(TrainingModeWarning):
        _, hidden, _ = model(x)
    with torch.no_grad():
        _, (undropped, _) = module.eval()(x)
    assert relative_error(hidden[0], undropped[0]) <= 1e-6  # the first layer's
    assert relative_error(hidden[1], undropped[1]) > 1e-2


class _Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(3, 5, 2, bidirectional=True), nn.GRU(3, 6), nn.RNN(3, 4)])
        self.heads = nn.ModuleList(nn.Linear(width, 2) for width in (10, 6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the last step of each layer."""
        pairs = zip(self.layers, self.heads, strict=True)
        return torch.cat([head(layer(x)[0][-1]) for layer, head in pairs], 1)


def test_a_training_step_changes_parameters_as_torch_does() -> None:
    torch.manual_seed(0)
    module = _Last().train()
    ours, before = copy.deepcopy(module), dict(copy.deepcopy(module).named_parameters())
    x, y = torch.randn(7, 3, 3), torch.randn(3, 6)
    trainer = Trainer(autocast.from_torch(module, (x,)), MSE(), SGD(momentum=0.0), learning_rate=0.5)
    trainer.step((x, y))
    trainer.to_torch(ours)
    nn.functional.mse_loss(module(x), y).backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    for name, want in module.named_parameters():
        change = (want - before[name]).detach()
        assert relative_error((ours.get_parameter(name) - before[name]).detach(), change) <= 1e-5, name


class Packs(nn.Module):
    """Layers that are given packed sequences; what they return is padded."""

    def __init__(self, *layers: nn.Module, total: bool = False) -> None:
        super().__init__()
        self.layers, self.total = nn.ModuleList(layers), total

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        """Of each padded hidden states with the lengths, and the last states of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        total, results = x.shape[1] if self.total else None, []
        for layer in self.layers:
            hiddens, last = layer(packed)
            results.append((*nn.utils.rnn.pad_packed_sequence(hiddens, True, 0.5, total_length=total), last))
        return results


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_packed_sequences_end_where_they_end() -> None:
    torch.manual_seed(0)
    kinds = (nn.LSTM, nn.GRU, nn.RNN, partial(nn.LSTM, proj_size=2))
    module = Packs(*(kind(3, 5, 2, batch_first=True, bidirectional=True) for kind in kinds)).eval()
    model = autocast.from_torch(module, (torch.randn(3, 6, 3), torch.tensor([2, 6, 4])), fallback="error")
    executable = autocast.vm.compile(model)
    for lengths in ([2, 6, 4], [1, 1, 3]):
        x = torch.randn(3, 6, 3)
        _agree(executable(x, torch.tensor(lengths)), module, x, torch.tensor(lengths))
    with pytest.raises(InputError, match="7 <= 6 does not hold"):
        executable(x, torch.tensor([1, 7, 1]))


def test_packed_sequences_are_as_many_and_as_long_as_they_are() -> None:
    torch.manual_seed(0)
    module = Packs(nn.LSTM(3, 5, batch_first=True, bidirectional=True), total=True).eval()
    sizes = {"count": ("*", 0), "length": ("x", 1)}
    model = autocast.from_torch(module, (torch.randn(3, 6, 3), torch.tensor([2, 6, 4])), dynamic=sizes)
    for lengths in ([2], [8, 7, 1, 1, 3]):
        x = torch.randn(len(lengths), max(lengths), 3)
        _agree(model(x, torch.tensor(lengths)), module, x, torch.tensor(lengths))


def test_what_a_module_does_to_packed_rows_is_done_to_them() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.GRU(3, 5, batch_first=True), nn.LSTM(5, 4, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            hiddens = self.first(packed)[0]
            hiddens, (last, _) = self.second(hiddens._replace(data=hiddens.data.relu()))
            return hiddens.data.mean(0), last

    torch.manual_seed(0)
    module, example = Deep().eval(), (torch.randn(3, 6, 3), torch.tensor([6, 3, 1]))
    _agree(autocast.from_torch(module, example)(*example), module, *example)
