"""Recurrent layers of torch: one operator for each direction of a layer, whatever their length."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import Model, amp
from autocast.errors import ImportModelError, InputError, TrainingModeWarning
from autocast.ir import op_name
from autocast.training import MSE, SGD, Trainer
from tests.frontend.helpers import relative_error

#: A layer, and how many operators it becomes.
LAYERS = {
    "LSTM": (lambda: nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True), "nn.lstm", 4),
    "GRU": (lambda: nn.GRU(3, 17, bidirectional=True), "nn.gru", 2),
    "GRU without biases": (lambda: nn.GRU(3, 5, bias=False), "nn.gru", 1),
    "RNN": (lambda: nn.RNN(3, 5, 2), "nn.rnn", 2),
    "RNN of relu": (lambda: nn.RNN(3, 5, nonlinearity="relu"), "nn.rnn", 1),
}


def _layer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name][0]().eval()


def _count(model: Model, name: str) -> int:
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    return sum(op_name(value) == f"relax.{name}" for value in values)


def _agree(got: Any, module: nn.Module, *args: Any, tolerance: float = 1e-6) -> None:
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(module(*args))
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert relative_error(one, other) <= tolerance


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_any_batch_and_length_is_an_operator_for_each_direction(name: str) -> None:
    module, (_, operator, count) = _layer(name), LAYERS[name]
    sizes = {"one": ("*", 0, 1, 64), "other": ("*", 1, 1, 512)}
    model = autocast.from_torch(module, (torch.randn(4, 6, 3),), dynamic=sizes, fallback="error")
    assert _count(model, operator) == count
    mixed = amp.autocast(model)
    for shape in ((4, 6, 3), (1, 1, 3), (9, 2, 3)):
        x = torch.randn(shape)
        _agree(model(x), module, x)
        _agree(mixed(x), module, x, tolerance=2e-2)


def test_hundreds_of_steps_are_no_more_operators_than_a_few() -> None:
    module = _layer("LSTM")
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
def test_projections_stay_written_out() -> None:
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 5, proj_size=2).eval(), torch.randn(2, 1, 3)
    model = autocast.from_torch(module, (x,))
    assert _count(model, "nn.lstm") == 0
    _agree(model(x), module, x)


def test_packed_sequences_with_projections_are_refused_with_what_to_try() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 5, proj_size=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
            return self.layer(packed)[1][0]

    with pytest.raises(ImportModelError, match=r"cannot"):
        autocast.from_torch(Packed(), (torch.randn(4, 2, 3),))


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
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the last step."""
        return self.head(self.layer(x)[0][-1])


TRAINED = {
    "LSTM": lambda: nn.LSTM(3, 5, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(3, 6),
    "RNN": lambda: nn.RNN(3, 4),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_changes_parameters_as_torch_does(name: str) -> None:
    torch.manual_seed(0)
    module = _Last(TRAINED[name]()).train()
    ours, before = copy.deepcopy(module), dict(copy.deepcopy(module).named_parameters())
    x, y = torch.randn(7, 3, 3), torch.randn(3, 2)
    trainer = Trainer(autocast.from_torch(module, (x,)), MSE(), SGD(momentum=0.0), learning_rate=0.5)
    trainer.step((x, y))
    trainer.to_torch(ours)
    nn.functional.mse_loss(module(x), y).backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    for name, want in module.named_parameters():
        change = (want - before[name]).detach()
        assert relative_error((ours.get_parameter(name) - before[name]).detach(), change) <= 1e-5


class Packs(nn.Module):
    """A layer that is given packed sequences, and pads what it returns."""

    def __init__(self, layer: nn.Module, total: bool = False) -> None:
        super().__init__()
        self.layer, self.total = layer, total

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        """Padded hidden states with the lengths, and the last states of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hiddens, last = self.layer(packed)
        total = x.shape[1] if self.total else None
        return *nn.utils.rnn.pad_packed_sequence(hiddens, True, 0.5, total_length=total), last


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_end_where_they_end(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    module = Packs(kind(3, 5, 2, batch_first=True, bidirectional=True)).eval()
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
