"""The Model value."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from autocast.errors import IllFormedModuleError, InputError
from autocast.frontend import from_relax, from_torch
from autocast.model import Model


class Difference(nn.Module):
    """a - weight * b, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        """Two outputs by name."""
        return {"difference": a - self.weight * b, "total": a + b}


@pytest.fixture(scope="module")
def model() -> Model:
    return from_torch(Difference(), (torch.zeros(2, 3), torch.zeros(2, 3)))


def test_a_model_runs_on_torch_tensors_and_on_arrays(model: Model) -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    difference, total = model(a, b)
    assert isinstance(difference, torch.Tensor)
    torch.testing.assert_close(difference, a - 2 * b)
    torch.testing.assert_close(total, a + b)
    difference, _ = model(a.numpy(), b.numpy())
    assert isinstance(difference, np.ndarray)
    np.testing.assert_allclose(difference, (a - 2 * b).numpy(), rtol=1e-6)


def test_inputs_may_be_given_by_name(model: Model) -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    assert model.input_names == ("a", "b")
    assert model.output_names == ("difference", "total")
    assert model.bind_inputs(a, b=b) == (a, b)
    assert model.bind_inputs(b=b, a=a) == (a, b)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, r"got 1 inputs by their places and \[\] by name.* b is missing. Pass them in this order"),
        ((), {}, r"got 0 inputs .* a, b are missing"),
        ((1, 2, 3), {}, "got 3 inputs by their places"),
        ((1, 2), {"a": 1}, r"got 2 inputs by their places and \['a'\] by name"),
        ((1,), {"c": 2}, r"\['c'\] by name.* b is missing"),
    ],
)
def test_missing_unknown_and_repeated_inputs_are_errors(model: Model, args: tuple, kwargs: dict, message: str) -> None:
    with pytest.raises(InputError, match=rf"{message}") as error:
        model.bind_inputs(*args, **kwargs)
    assert "expected each of the 2 inputs ['a', 'b'] once" in str(error.value)


def test_a_call_without_the_weights_says_how_to_bind_them(model: Model) -> None:
    unbound = from_relax(tvm.IRModule({"main": model.main.without_attr("num_input")}))
    with pytest.raises(InputError, match=r"or by name. autocast\.from_relax\(mod, params\) binds those that"):
        unbound(torch.ones(2, 3))


def test_a_model_is_equal_to_itself_only_and_can_be_referred_to_weakly(model: Model) -> None:
    copy = model.replace(report="a report")
    assert copy != model
    assert copy.params is model.params
    assert (copy.report, model.report) == ("a report", None)
    assert {model: 1}[weakref.ref(model)()] == 1


def test_the_script_is_tvmscript(model: Model) -> None:
    assert tvm.script.from_source(model.script())["main"].attrs["num_input"] == 2


def test_a_module_that_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(IllFormedModuleError, match="no function 'main'"):
        Model(tvm.IRModule({}))
    with pytest.raises(IllFormedModuleError, match="got 0 parameters, but main takes 1"):
        Model(model.mod)


def test_a_model_prints_as_one_line(model: Model) -> None:
    assert repr(model).startswith("Model(a: ")
    assert "1 parameters" in repr(model)
    assert "\n" not in repr(model)
