"""What users do around `torch.compile(backend="autocast")`: complex numbers, hooks, checkpoints, options of torch."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autocast
from autocast import dynamo


def _compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"}, **options)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, 2 * x)


def test_complex_results_are_complex() -> None:
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(_compiled(_rotated)(x), _rotated(x))


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")  # of their conjugates
def test_complex_numbers_have_gradients() -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    got, expected = _compiled(square)(x), square(x)
    torch.testing.assert_close(got, expected)
    weight = torch.randn(3, 4, dtype=torch.complex64)
    torch.testing.assert_close(torch.autograd.grad(got, x, weight), torch.autograd.grad(expected, x, weight))


def test_a_wrapped_module_returns_complex_results() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"spectrum": _rotated(x), "mean": x.mean()}

    x = torch.randn(3, 8)
    got = autocast.wrap(Spectrum())(x)
    torch.testing.assert_close(got["spectrum"], _rotated(x), rtol=1e-2, atol=1e-2)
    assert not got["mean"].is_complex()


def test_a_graph_that_computes_nothing_is_passed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    compiled = _compiled(function)
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign, requires_grad=True)
        torch.testing.assert_close(compiled(x), function(x))
        compiled(x).sum().backward()


def test_backward_hooks_change_gradients() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    module[1].register_full_backward_hook(lambda module, given, result: (3 * given[0],))
    plain, x = copy.deepcopy(module), torch.randn(3, 6)
    for called in (_compiled(module), plain):
        called(x).sum().backward()
    torch.testing.assert_close(module[0].weight.grad, plain[0].weight.grad)


def test_sizes_that_turn_out_fixed_are() -> None:
    module = nn.Linear(6, 4)
    compiled = _compiled(module, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("within", [True, False])
def test_what_dropout_drew_in_a_checkpointed_part_is_drawn_alike(within: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        return F.dropout(x.sin(), 0.5)

    def checkpointed(x: torch.Tensor) -> Any:
        return checkpoint(function if within else compiled, x, use_reentrant=False)

    compiled = _compiled(checkpointed if within else function)
    x = torch.randn(256, requires_grad=True)
    y = (compiled if within else checkpointed)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (y != 0) * 2 * x.detach().cos())


def test_torchs_seed_is_that_of_what_is_drawn() -> None:
    compiled, x = _compiled(lambda x: F.dropout(x, 0.5)), torch.ones(256)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_with_what_to_do() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(Exception, match=r"given a nested tensor.*torch\.nested\.to_padded_tensor"):
        _compiled(torch.sin)(rows)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own way to such derivatives
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_derivatives_are_taken_forwards(is_wrapped: bool) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    called = autocast.wrap(module, policy="mp0") if is_wrapped else _compiled(module)
    x, direction = torch.randn(3, 6), torch.randn(3, 6)
    with torch.no_grad(), forward_ad.dual_level():
        _, tangent = forward_ad.unpack_dual(called(forward_ad.make_dual(x, direction)))
    expected = (1 - module(x).square()) * (direction @ module[0].weight.T)
    torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_tensors_without_values_are_computed_by_torch(is_wrapped: bool) -> None:
    module = nn.Linear(6, 4)
    called = autocast.wrap(module, policy="mp0") if is_wrapped else _compiled(module)
    with torch.no_grad():
        called(torch.randn(3, 6))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert isinstance(called(mode.from_tensor(torch.randn(3, 6))), FakeTensor)


def test_a_mode_is_an_error_that_says_what_to_pass() -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend=dynamo.backend, mode="max-autotune")
    with pytest.raises(Exception, match="one of Inductor's; expected none"):
        compiled(torch.randn(2, 4))


class _Checkpointed(nn.Module):
    """Parts that are computed again for gradients, one of which has another within."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def part(y: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.second, self.first(y).relu(), use_reentrant=False)

        return checkpoint(part, x, use_reentrant=False) + x


def test_checkpointed_parts_infer() -> None:
    module, x = _Checkpointed().eval(), torch.randn(4, 6)
    with torch.no_grad():
        torch.testing.assert_close(_compiled(module)(x), module(x))


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["compiled", "wrapped"])
def test_weights_that_are_written_past_autograd(is_wrapped: bool) -> None:
    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data = self.weight.data.to(x.device)
            self.weight.data = F.normalize(self.weight.data, dim=0)
            self.scale.data.clamp_(min=0.0)
            return x @ self.weight * self.scale

    module, x = Clips().eval(), torch.randn(2, 4)
    expected = copy.deepcopy(module)
    run = autocast.wrap(module, policy="mp0") if is_wrapped else _compiled(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), expected(x))
    torch.testing.assert_close(module.state_dict(), expected.state_dict())


@pytest.mark.parametrize(
    "write",
    [
        lambda weight, x: setattr(weight, "data", weight.data.clamp(0.0, 1.0)),
        lambda weight, x: setattr(weight, "data", weight.clamp(0.0, 1.0)),
        lambda weight, x: setattr(weight, "data", weight.data.to(x.device)),
        lambda weight, x: weight.data.clamp_(0.0, 1.0),
    ],
    ids=["clamped", "with gradients", "moved", "in place"],
)
def test_weights_that_are_written_past_autograd_train(write: Any) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            write(self.weight, x)
            return x * self.weight

    x, module, expected = torch.randn(2, 4), Writes(), Writes()
    _compiled(module)(x).square().sum().backward()
    expected(x).square().sum().backward()
    torch.testing.assert_close(module.weight, expected.weight)
    torch.testing.assert_close(module.weight.grad, expected.weight.grad)


def test_a_weight_that_becomes_anothers_memory_is_refused() -> None:
    class Ties(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data = self.bias.data
            return x * self.weight

    with torch.no_grad(), pytest.raises(Exception, match="memory of a tensor that is replaced in place"):
        _compiled(Ties(3))(torch.randn(2, 3))


class _Force(nn.Module):
    """The gradient of an energy, as interatomic potentials return it."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            energy = self.energy(x).sum()
            return energy, -torch.autograd.grad(energy, x)[0]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which Dynamo looks at where it breaks the graph
def test_gradients_are_taken_in_a_model_that_infers() -> None:
    module, x = _Force().eval(), torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(_compiled(module)(x), module(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of torch's own decompositions
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))(x),
        lambda x: torch.func.hessian(lambda y: (y**3).sum())(x[0]),
        lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    ],
    ids=["grad", "hessian", "jacfwd"],
)
def test_functions_of_derivatives_infer(function: Any) -> None:
    x = torch.randn(4, 3)
    torch.testing.assert_close(_compiled(function)(x), function(x))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.LayerNorm(6), "eps"),
        (nn.BatchNorm1d(6), "momentum"),
        (nn.Hardtanh(), "max_val"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_attribute_that_is_a_number_may_change(module: nn.Module, name: str) -> None:
    x, reference = torch.randn(5, 6), copy.deepcopy(module)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    with torch.no_grad():
        for value in (0.125, 0.5, 0.75, 0.5):
            setattr(module, name, value)
            setattr(reference, name, value)
            torch.testing.assert_close(compiled(x), reference(x), msg=f"{name}={value}")
    torch.testing.assert_close(module.state_dict(), reference.state_dict())


def test_a_graph_break_passes_numbers_that_a_number_of_the_call_says() -> None:
    def function(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, int]:
        count, is_large, y = math.ceil(2 / scale), scale > 0.5, x * scale
        torch._dynamo.graph_break()
        return y[:count] if is_large else y + 1, count

    compiled = _compiled(function)
    for scale in (0.5, 0.7, 0.3, 0.9):
        x = torch.randn(5, 6)
        got, expected = compiled(x, scale), function(x, scale)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1] == expected[1]


@pytest.mark.parametrize("policy", ["mp0", "mp1"])
def test_several_gradients_are_computed_at_a_time(policy: str) -> None:
    module, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 6)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": policy})
    found, expected = (torch.autograd.functional.jacobian(f, x, vectorize=True) for f in (compiled, module))
    tolerance = {"mp0": 1e-6, "mp1": 2e-2}[policy]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_checkpointed_parts_with_running_statistics_train() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.part, x, use_reentrant=False) ** 2

    module, x = Module().train(), torch.randn(4, 6)
    references = [copy.deepcopy(module) for _ in range(2)]
    runs = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"}), references[0].part, references[1]
    for step in range(2):
        for run in runs:
            run(x + step).square().sum().backward()
    # torch's eager checkpoint moves the statistics twice in a step, and the part alone once, with other gradients.
    statistics = [dict(one.part.named_buffers()) for one in (module, references[0])]
    torch.testing.assert_close(*statistics)
    gradients = [one.part[0].weight.grad for one in (module, references[1])]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
