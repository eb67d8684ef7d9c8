"""Recurrent cells in mixed precision: products in low precision, what a step hands to the next in float32."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import autocast
from autocast import Model, amp
from autocast.ir import is_op
from type_hints import CustomTypeHint, low


class WrittenOut(nn.Module):
    """The cell of an LSTM as its author may write it, three steps long."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(4 + 5, 4 * 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last output."""
        h = c = x.new_ones(x.shape[0], 5)
        for t in range(x.shape[1]):
            forget, update, output, candidate = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.tanh(candidate) * torch.sigmoid(update) + c * torch.sigmoid(forget)
            h = torch.tanh(c) * torch.sigmoid(output)
        return h


class Cells(nn.Module):
    """An LSTM of cells of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last output."""
        states = None
        for t in range(x.shape[1]):
            states = self.cell(x[:, t], states)
        return states[0]


#: A recurrent module whose steps are written out, and how many its cells take together.
CELLS = {
    "cells": (Cells, 3),
    "written out": (WrittenOut, 3),
}


def imported(name: str) -> Model:
    """A recurrent module, three steps long."""
    torch.manual_seed(0)
    return autocast.from_torch(CELLS[name][0](), (torch.randn(2, 3, 4),))


def dtypes(model: Model, operator: str, argument: int = 0) -> Counter[str]:
    """How often an operator reads each dtype."""
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    return Counter(str(value.args[argument].ty.dtype) for value in values if is_op(value, operator))


@pytest.mark.parametrize("name", CELLS)
def test_the_state_of_a_cell_stays_float32_between_low_products(name: str) -> None:
    model = amp.autocast(imported(name))
    assert dtypes(model, "relax.matmul").keys() == {"bfloat16"}
    assert sum(dtypes(model, "relax.nn.gated_add").values()) == CELLS[name][1]
    for operator in ("nn.gated_add", "add", "multiply", "sigmoid", "tanh"):
        assert dtypes(model, f"relax.{operator}").keys() == {"float32"}, operator


def test_a_policy_or_a_block_may_round_it() -> None:
    model = imported("written out")
    with CustomTypeHint({"gated_add": low(3)}):
        by_block = amp.autocast(model)
    by_name = amp.autocast(model, policy=amp.Policy(low_ops=("nn.gated_add",)))
    for rounded in (by_block, by_name, amp.autocast(model, policy="mp4")):
        assert dtypes(rounded, "relax.nn.gated_add").keys() == {"bfloat16"}


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_multiplies_low_and_keeps_its_states(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = amp.autocast(autocast.from_torch(layer(4, 5), (torch.randn(2, 3, 4),)))
    name = f"relax.nn.{layer.__name__.lower()}"
    added = {"LSTM": (0, 2, 3), "GRU": (0, 2, 3), "RNN": (0, 2)}[layer.__name__]
    assert dtypes(model, name, 1).keys() == {"bfloat16"}
    assert all(dtypes(model, name, argument).keys() == {"float32"} for argument in added)
