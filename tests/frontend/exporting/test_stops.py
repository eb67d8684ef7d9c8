"""Where gradients stop in torch, they stop in training; who infers computes nothing for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import vm
from autocast.errors import OwnBackwardWarning
from autocast.frontend import from_torch
from autocast.ir import op_name
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.training import MSE, SGD, differentiate, training_step
from tests.frontend.helpers import assert_close, operators


class _Of(nn.Module):
    """A function of two linear layers and an input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def _quantized(of: Any, x: torch.Tensor) -> torch.Tensor:
    """As vector quantization passes gradients straight through, and pulls codes and inputs together."""
    h = of.a(x)
    code = of.b.weight[torch.cdist(h, of.b.weight).argmin(-1)]
    return h + (code - h).detach() + F.mse_loss(code, h.detach()) + 0.25 * F.mse_loss(code.detach(), h)


def _target(of: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        wanted = F.normalize(of.b(x), dim=-1)
        wanted = wanted * 2
    return F.normalize(of.a(x), dim=-1) * wanted


def _nested(of: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        still = of.a(x)
        with torch.enable_grad():
            moving = of.b(x)
    with torch.set_grad_enabled(False):
        other = moving * still
    return moving * still + other


@torch.no_grad()
def _teacher(of: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.sort(of.b(x), -1).values


def _distilled(of: Any, x: torch.Tensor) -> torch.Tensor:
    return of.a(x).tanh() * _teacher(of, x)


def _written(of: Any, x: torch.Tensor) -> torch.Tensor:
    h = of.a(x)
    target = of.b(h).detach()
    target[:, 1:] *= 3
    return h * target


def _moved(of: Any, x: torch.Tensor) -> torch.Tensor:
    """What is written into a detached tensor is in the tensor itself, too."""
    h = of.a(x)
    h.detach().add_(1)
    return of.b(x) + h


def _scaled(of: Any, x: torch.Tensor) -> torch.Tensor:
    """What is written by way of a detached tensor changes values alone; the detached one has no gradient."""
    h = of.a(x)
    target = h.detach()
    target[:, 1:].mul_(3)
    return of.b(x) * target + h


def _read_after_a_write(of: Any, x: torch.Tensor) -> torch.Tensor:
    """Views of what is detached are made anew after each write to what they are views of."""
    h = of.a(x)
    before = h.detach().t()
    h[0] = 0.5
    h[:, :1] += h.detach()[:, 1:2] * 0.5
    return h * before[1:2].t() + of.b(x)


def _written_by_all_names(of: Any, x: torch.Tensor) -> torch.Tensor:
    """What is written afterwards, by one name, is read by all of them."""
    h = of.a(x)
    row, still = h[0], h.detach()
    still.mul_(2)
    with torch.no_grad():
        h.clamp_(0)
    h.add_(1)
    still[1].sub_(3)
    return of.b(x) * still + h * row


def _of_several(of: Any, x: torch.Tensor) -> torch.Tensor:
    h = of.a(x)
    largest = h.topk(2).values
    with torch.no_grad():
        h.unbind()[0].mul_(2)
        largest.mul_(3)
    return of.b(x) * h + torch.cat([largest, largest], 1)


def _clamped(of: Any, x: torch.Tensor) -> torch.Tensor:
    """What is written while no gradient is wanted is read by its old name, and by the new one, with one."""
    h = of.a(x) * 2
    with torch.no_grad():
        h.clamp_(min=-0.5)
        same = h.mul_(0.5)
    return of.b(h) * same


def _binary(of: Any, x: torch.Tensor) -> torch.Tensor:
    weight = of.a.weight * 1.0
    with torch.no_grad():
        weight.copy_(weight.sign())
    return F.linear(of.b(x), weight)


def _in_part(of: Any, x: torch.Tensor) -> torch.Tensor:
    h = of.a(x) + of.b(x)
    with torch.no_grad():
        h[0].clamp_(min=0)
        h[h > 1] = 1.0
    return h * h


def _inside(of: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h = of.b(x) * 2
        h.clamp_(min=0)
    return of.a(x) * h


_STOPPED = [_quantized, _target, _nested, _distilled, _written, _moved, _scaled, _read_after_a_write, _clamped, _binary]
_STOPPED += [_written_by_all_names, _of_several, _in_part, _inside]


@pytest.mark.parametrize("function", _STOPPED)
def test_no_gradient_passes_where_torch_stops_it(function: Callable[..., torch.Tensor]) -> None:
    module, x, y = _Of(function), torch.randn(3, 4), torch.randn(3, 4)
    step = vm.compile(training_step(from_torch(module, (x,)), MSE(), SGD()))
    expected = copy.deepcopy(module)
    loss = F.mse_loss(expected(x), y)
    loss.backward()
    assert_close([step(x, y, torch.tensor(0.1))], [loss.detach()])
    for name, parameter in expected.named_parameters():
        moved = parameter.detach() - (0 if parameter.grad is None else 0.1 * parameter.grad)
        if name in step.state:
            assert_close([torch.from_numpy(step.state[name].numpy())], [moved])
        else:
            assert parameter.grad is None or not parameter.grad.any()


def test_an_input_that_is_written_by_way_of_detach_has_the_gradient_of_what_it_is_then() -> None:
    def squares(of: Any, x: torch.Tensor) -> torch.Tensor:
        x.detach().mul_(3)
        return (x * x).sum()

    x = torch.randn(3, 4)
    model = from_torch(_Of(squares), (x.clone(),))
    function = differentiate(model.main.without_attr("written"), [model.main.params[0]], mod=model.mod)
    mod = model.mod.clone()
    mod["main"] = function
    assert_close([vm.compile(model.replace(mod=mod, output_names=()))(x)[-1]], [2 * 3 * x])


def test_who_infers_computes_nothing_for_it() -> None:
    model = from_torch(_Of(_target), (torch.randn(3, 4),))
    assert operators(model)["grad.no_grad"] == 1
    bindings = canonicalize(model.mod)["main"].body.blocks[0].bindings
    assert not [binding for binding in bindings if op_name(binding.value) == "relax.grad.no_grad"]


def test_what_no_gradient_reaches_is_imported_as_it_is() -> None:
    """Angles of rotary embeddings come from positions alone."""

    @torch.no_grad()
    def angles(positions: torch.Tensor) -> torch.Tensor:
        return positions[:, None].float() * torch.arange(4).float()

    module = _Of(lambda of, positions: of.a(angles(positions).cos()))
    assert "grad.no_grad" not in operators(from_torch(module, (torch.arange(3),)))


def test_a_program_that_torch_exported_with_gradients_stops_them_too() -> None:
    module, x = _Of(_target), torch.randn(3, 4)
    model = from_torch(torch.export.export(module, (x,)))
    assert operators(model)["grad.no_grad"] == 1
    assert_close([vm.compile(model)(x)], [module(x).detach()])


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -grad


def test_a_backward_of_its_own_is_said_to_be_lost() -> None:
    model = from_torch(_Of(lambda of, x: _Rounded.apply(of.a(x)).sum()), (torch.randn(3, 4),))
    with pytest.warns(OwnBackwardWarning, match=r"_Rounded computes with a backward of its own.*detach\(\)"):
        differentiate(model.main, model.main.params[1:], mod=model.mod)


def test_functions_are_known_where_torch_applies_them_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does from 2.14 on."""
    monkeypatch.setattr(torch.autograd.Function, "apply", torch._C._FunctionBase.__dict__["apply"])
    model = from_torch(_Of(lambda of, x: _Rounded.apply(of.a(x)).sum()), (torch.randn(3, 4),))
    with pytest.warns(OwnBackwardWarning, match="_Rounded computes with a backward of its own"):
        differentiate(model.main, model.main.params[1:], mod=model.mod)


def test_gradients_of_padding_are_zero_in_evaluation_mode_too() -> None:
    """Where indices are constants as well; to infer, both branches are one."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Embedding(6, 4, padding_idx=1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.e(ids) + self.e(torch.tensor([0, 1, 3]))

    torch.manual_seed(0)
    module, ids = Both().eval(), torch.tensor([[1, 2, 5], [1, 1, 0]])
    with torch.no_grad():
        module.e.weight[1] = 0.5
    model = from_torch(module, (ids,))
    step = vm.compile(training_step(model, MSE(), SGD()))
    step(ids, torch.zeros(2, 3, 4), torch.tensor(0.1))
    F.mse_loss(module(ids), torch.zeros(2, 3, 4)).backward()
    expected = module.e.weight.detach() - 0.1 * module.e.weight.grad
    assert_close([torch.from_numpy(step.state["e.weight"].numpy())], [expected])
    names = [op_name(b.value) for b in canonicalize(model.mod)["main"].body.blocks[0].bindings]
    assert "relax.where" not in names
