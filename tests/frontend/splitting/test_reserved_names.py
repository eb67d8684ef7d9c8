"""Parameters have names that no code can have: those of keywords, and of what a GraphModule has itself."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

import autocast
from autocast import vm
from autocast.frontend.splitting.reserved import in_writing
from autocast.training import MSE, SGD, training_step

NAMES = ("graph", "code", "meta", "recompile", "class", "None", "usual")


class _Named(nn.Module):
    """A layer and a factor, in this order, by names that one asks for."""

    def __init__(self, layer: str, factor: str) -> None:
        super().__init__()
        self.add_module(layer, nn.ModuleDict({"lambda": nn.Linear(3, 3)}))
        self.register_parameter(factor, nn.Parameter(torch.rand(3)))
        self.layer, self.factor = layer, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._modules[self.layer]["lambda"](x) * self._parameters[self.factor]


@pytest.mark.parametrize("layer", NAMES)
def test_modules_with_such_names_are_imported_and_written_again(layer: str) -> None:
    module, x = _Named(layer, "print_readable"), torch.randn(2, 3)
    model = autocast.from_torch(module, (x,), fallback="error")
    assert list(model.params) == [name for name, _ in module.named_parameters()]
    torch.testing.assert_close(model(x), module(x))

    again = autocast.to_torch(model)
    assert again.state_dict().keys() == module.state_dict().keys()
    other = _Named(layer, "print_readable")
    again.load_state_dict(other.state_dict())
    for one in (again, copy.deepcopy(again), pickle.loads(pickle.dumps(again))):
        torch.testing.assert_close(one(x), other(x))
        torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_they_are_trained_where_torch_runs_them() -> None:
    module, x = _Named("graph", "code"), torch.randn(2, 3)
    step = training_step(autocast.from_torch(module, (x,)), MSE(), SGD())
    batch = (x, torch.randn(2, 3), torch.tensor(0.1))
    ours, theirs = vm.compile(step), vm.compile(step, "torch:cpu", mode="eager")
    for executable in (ours, theirs):
        executable(*batch)
    assert set(theirs.state) >= set(dict(module.named_parameters()))
    for name, value in ours.state.items():
        torch.testing.assert_close(torch.from_dlpack(theirs.state[name]), torch.from_dlpack(value))


@pytest.mark.parametrize("name", ["self", "training", "", 'with "quotes"', "two\nlines", "a b", "class.state_dict"])
@pytest.mark.parametrize("place", ["input", "parameter"])
def test_hand_written_modules_have_any_names(name: str, place: str) -> None:
    x = relax.Var(name if place == "input" else "x", relax.TensorType((2, 3), "float32"))
    own = name if place == "parameter" else "weight"
    weight = relax.Var(own, relax.TensorType((3,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight], attrs={"num_input": 1}):
        builder.emit_func_output(builder.emit(relax.op.multiply(x, weight)))
    model = autocast.from_relax(builder.get(), {own: np.arange(3, dtype="float32")})
    module = autocast.to_torch(model)
    assert list(module.state_dict()) == [own]
    torch.testing.assert_close(module(torch.ones(2, 3)), torch.arange(3.0).expand(2, 3))


def test_other_names_are_none_that_there_are() -> None:
    assert in_writing(["graph", "graph__", "a.class", "b"]) == {"graph": "graph___", "a.class": "a.class__"}
