"""Modules that differentiate while they run are imported, to infer: derivatives are written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autocast
from autocast.errors import GradientError, ImportModelError
from autocast.frontend import from_torch
from autocast.training import MSE, SGD, training_step
from tests.frontend.helpers import Calls, assert_close, runner


class Forces(nn.Module):
    """An energy of distances, and its gradient by the places."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 3)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 1))

    def forward(self, places: torch.Tensor, kinds: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Of each atom its kind."""
        places = places.requires_grad_(True)
        squares = (places[:, None] - places[None]).pow(2).sum(-1, keepdim=True)
        near = torch.cat([squares, self.kinds(kinds).expand(kinds.shape[0], -1, -1)], -1)
        energy = self.layers(near).sum()
        (gradient,) = torch.autograd.grad(energy, places, create_graph=self.training)
        return {"energy": energy.detach(), "forces": -gradient, "stress": None}


ATOMS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0])


def test_forces_are_the_gradients_of_an_energy() -> None:
    module = Forces().eval()
    model = from_torch(module, ATOMS)
    assert (model.input_names, model.output_names) == (("places", "kinds"), ("energy", "forces"))
    assert set(model.params) == set(module.state_dict())
    want = module(ATOMS[0].clone(), ATOMS[1])
    assert_close(runner(model)(*ATOMS), [want["energy"], want["forces"].detach()])


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: torch.vmap(torch.func.grad(lambda z: f(z).sum()))(x),
        lambda f, x: torch.vmap(torch.func.jacrev(f))(x),
        lambda f, x: torch.func.jacfwd(f)(x[0]),
        lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f, x: torch.func.hessian(lambda z: f(z).square().sum())(x[0]),
    ],
    ids=["gradients", "jacobians", "jacobian forward", "product", "hessian"],
)
def test_transforms_of_functions_are_imported(derivative: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    module = Calls(lambda x: derivative(lambda z: torch.tanh(layer(z)), x))
    module.layer = layer
    model = from_torch(module.eval(), (x,))
    assert_close(runner(model)(x), [module(x).detach()])


def test_a_wrapped_module_differentiates_as_it_did() -> None:
    module = Forces().eval()
    with torch.no_grad():
        got = autocast.wrap(module, policy="mp0")(*ATOMS)
    want = module(ATOMS[0].clone(), ATOMS[1])
    assert got.keys() == want.keys() and got["stress"] is None
    assert_close([got["forces"]], [want["forces"].detach()])


def test_hooks_of_a_module_that_differentiates_are_called_once() -> None:
    module = Forces().eval()
    module.register_forward_hook(lambda module, args, result: {"forces": 2 * result["forces"]})
    want = module(ATOMS[0].clone(), ATOMS[1])
    assert_close(runner(from_torch(module, ATOMS))(*ATOMS), [want["forces"].detach()])


def test_where_gradients_stop_is_not_known_to_who_trains() -> None:
    model = from_torch(Forces().train(), ATOMS)
    with pytest.raises(GradientError, match=r"computes by torch\.autograd\.grad.* Train it in torch"):
        training_step(model, MSE(output="forces"), SGD())


def test_forces_are_of_any_number_of_atoms() -> None:
    module = Forces().eval()
    run = runner(from_torch(module, ATOMS, dynamic={"atoms": ("*", 0, 2, 9)}))
    for count in (2, 5, 9):
        places, kinds = torch.randn(count, 3), torch.arange(count) % 4
        want = module(places.clone(), kinds)
        assert_close(run(places, kinds), [want["energy"], want["forces"].detach()])


class Differentiates(nn.Module):
    """What is computed of a layer's derivatives."""

    def __init__(self, derivative: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.derivative = nn.Linear(4, 3), derivative

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.derivative(self.layer, x)


def _gradient_of_weights(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weights = dict(layer.named_parameters())
    return torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).square().mean())(weights)["weight"]


def _after_one_step(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(layer(x).square().mean(), layer.weight)
    return nn.functional.linear(x, layer.weight - 0.1 * gradient, layer.bias)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: torch.vmap(torch.func.grad(lambda z: f(z).tanh().sum()))(x),
        _gradient_of_weights,
        _after_one_step,
    ],
    ids=["gradients", "weights", "one step"],
)
def test_derivatives_are_of_any_batch(derivative: Callable[..., torch.Tensor]) -> None:
    module = Differentiates(derivative).eval()
    run = runner(from_torch(module, (torch.randn(5, 4),), dynamic={"batch": (0, 0, 2, 9)}))
    for batch in (2, 5, 9):
        x = torch.randn(batch, 4)
        assert_close(run(x), [module(x).detach()])


def test_a_module_that_differentiates_what_a_size_decides_is_refused() -> None:
    def derivative(f: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda z: f(z).sum() if x.shape[0] % 2 else z.sum()))(x)

    with pytest.raises(ImportModelError, match="decides by sizes: for n = 2 this does not hold"):
        from_torch(Differentiates(derivative).eval(), (torch.randn(5, 4),), dynamic={"n": (0, 0, 2, 9)})


def test_sizes_that_become_numbers_are_refused_and_fixed_ones_offered() -> None:
    def derivative(f: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda z: f(z).sum() * len(x)))(x)

    with pytest.raises(ImportModelError, match=r"Without dynamic=, for inputs of these sizes alone"):
        from_torch(Differentiates(derivative).eval(), (torch.randn(5, 4),), dynamic={"n": (0, 0, 2, 9)})


def test_a_module_that_keeps_a_derivative_is_refused_and_stays_as_it_was() -> None:
    class Keeps(Forces):
        def forward(self, places, kinds):
            self.last = super().forward(places, kinds)["forces"]
            return self.last

    module = Keeps().eval()
    with pytest.raises(ImportModelError):
        from_torch(module, ATOMS)
    assert "last" not in vars(module)
