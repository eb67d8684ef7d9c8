"""Regions in the author's code: where they can be written, and what they do when it runs in torch."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autocast import amp
from autocast.errors import PolicyError
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls
from tests.policy.nested import Nested, X, regions


@amp.disable_autocast(dtype="float32")
def _exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


class Method(nn.Module):
    """A method in a region."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.sin(self.inside(x))

    @amp.disable_autocast(dtype="float32")
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


@amp.disable_autocast(dtype="float32")
class Exp(nn.Module):
    """A class in a region."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


class PlainExp(nn.Module):
    """A class in none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


def _decorated_instance() -> nn.Module:
    return amp.disable_autocast(dtype="float32")(PlainExp())


def _pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Calls(lambda x: torch.sin(_exp(x))),
        Method,
        lambda: nn.Sequential(Exp(), Calls(torch.sin)),
        lambda: nn.Sequential(_decorated_instance(), Calls(torch.sin)),
        lambda: nn.Sequential(copy.deepcopy(_decorated_instance()), Calls(torch.sin)),
        lambda: nn.Sequential(_pickled(_decorated_instance()), Calls(torch.sin)),
    ],
    ids=["function", "method", "class", "instance", "copied instance", "pickled instance"],
)
def test_a_region_decorates(make: Callable[[], nn.Module], strict: bool) -> None:
    program = torch.export.export(make(), (X,), strict=strict)
    assert regions(from_torch(program.module(), (X,))) == {"exp": "float32", "sin": ""}


def test_other_instances_of_a_decorated_instances_class_are_in_no_region() -> None:
    _decorated_instance()
    assert regions(from_torch(PlainExp(), (X,))) == {"exp": ""}


def test_a_copy_of_a_decorated_instance_computes_with_its_own_parameters() -> None:
    layer = amp.disable_autocast()(nn.Linear(8, 8))
    other = copy.deepcopy(layer)
    nn.init.zeros_(other.weight)
    assert torch.equal(other(X), layer.bias.expand(4, 8))


def test_a_decorated_instance_is_called_with_the_names_of_its_arguments() -> None:
    model = from_torch(_decorated_instance(), (), example_kwargs={"x": X}, dynamic={"batch": ("x", 0)})
    assert model.input_names == ("x",)


def test_the_innermost_of_two_decorations_decides() -> None:
    module = amp.disable_autocast(dtype="float32")(amp.fp16_guard()(PlainExp()))
    assert regions(from_torch(module, (X,))) == {"exp": "guard"}


def test_one_region_can_be_entered_again_inside_itself() -> None:
    region = amp.disable_autocast(dtype="float32")

    def twice(x: torch.Tensor) -> torch.Tensor:
        with region:
            with region:
                x = torch.exp(x)
            x = torch.tanh(x)
        return torch.sin(x)

    assert regions(from_torch(Calls(twice), (X,))) == {"exp": "float32", "tanh": "float32", "sin": ""}


def test_an_exception_leaves_the_region() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        try:
            with amp.disable_autocast():
                raise ValueError
        except ValueError:
            return torch.sin(x)

    assert regions(from_torch(Calls(fails), (X,))) == {"sin": ""}


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"got dtype='int8', expected 'float32', 'bfloat16', 'float16', or None"):
        amp.disable_autocast(dtype="int8")


def _generator() -> Any:
    yield X


@pytest.mark.parametrize(
    "subject", [int, 3, _generator], ids=["a class that is no module", "what cannot be called", "a generator"]
)
def test_what_does_not_compute_is_not_decorated(subject: Any) -> None:
    with pytest.raises(PolicyError, match=r"disable_autocast\(dtype='float32'\) decorates functions"):
        amp.disable_autocast(dtype="float32")(subject)


def test_eager_code_does_what_it_did() -> None:
    x = torch.relu(X).exp().tanh().sin().cos().sigmoid()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Nested()(X), x)


def test_torch_autocast_is_off_in_a_disabled_region_only() -> None:
    layer, dtypes = nn.Linear(8, 8), []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtypes.append(layer(X).dtype)
        with amp.disable_autocast():
            dtypes.append(layer(X).dtype)
        with amp.fp16_guard():
            dtypes.append(layer(X).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]
