"""`torch.compile(module, backend="autocast")` and `autocast.wrap` train: loops of torch go on as before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

import autocast
from autocast import dynamo
from autocast.dynamo import training
from autocast.errors import ImportModelError

#: No low precision at all.
_FLOAT32 = {"policy": "mp0"}


def _compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.backend, options=options)


def _wrapped(module: Any, **options: Any) -> Any:
    return autocast.wrap(module, **options)


def _bert(dropout: float = 0.0) -> nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.BertForMaskedLM(config)


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # a bias would have a gradient of rounding errors
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 2 * 2, 4),
    )


def _words(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 100, (rows, 8)), torch.randint(0, 100, (rows, 8))


def _pictures(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, 12, 12), torch.randint(0, 4, (rows,))


def _loss_of_words(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x, labels=y).loss
    return loss


def _loss_of_pictures(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(module(x), y)


_TASKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], Callable[..., torch.Tensor]]] = {
    "bert": (_bert, _words, _loss_of_words),
    "images": (_images, _pictures, _loss_of_pictures),
}


def _losses(module: Any, parameters: Any, loss: Callable[..., torch.Tensor], batches: Any) -> list[float]:
    """A loop as anybody writes it."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(module, x, y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize(
    ("name", "make", "options", "tolerance"),
    [
        ("bert", _compiled, _FLOAT32, 1e-4),
        ("bert", _wrapped, {}, 2e-2),
        ("images", _wrapped, _FLOAT32, 1e-4),
        ("images", _compiled, {}, 2e-2),
    ],
)
def test_a_loop_of_torch_has_the_losses_that_it_had(name: str, make: Any, options: Any, tolerance: float) -> None:
    build, batch, loss = _TASKS[name]
    module = build().train()
    plain, batches = copy.deepcopy(module), [batch()] * 5
    expected = _losses(plain, plain.parameters(), loss, batches)
    got = _losses(make(module, **options), module.parameters(), loss, batches)
    assert got == pytest.approx(expected, rel=tolerance)
    for (key, ours), theirs in zip(module.state_dict().items(), plain.state_dict().values(), strict=True):
        if "running" in key:
            torch.testing.assert_close(ours, theirs, rtol=5 * tolerance, atol=5 * tolerance)
    assert expected[-1] < expected[0]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The steps that are compiled."""
    made: list[Any] = []
    step = training._Step
    monkeypatch.setattr(training, "_Step", lambda options: made.append(step(options)) or made[-1])
    return made


def test_what_is_kept_for_low_reads_alone_is_kept_low() -> None:
    """The activation is: products read it, and the derivative of tanh."""
    module = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Tanh(), nn.Linear(32, 8, bias=False))
    kept: list[torch.Tensor] = []
    x = torch.randn(4, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        _compiled(module)(x).sum().backward()
    assert [tuple(t.shape) for t in kept if t.dtype == torch.bfloat16] == [(4, 32)]
    plain = copy.deepcopy(module)
    plain.zero_grad()
    plain(x).sum().backward()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=5e-2, atol=5e-2)


def test_dropout_draws_anew_and_scales_its_gradient_alike() -> None:
    compiled = _compiled(nn.Dropout(0.5).train())
    x = torch.ones(64, 64, requires_grad=True)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (first == 0).float().mean() < 0.6  # 13 standard deviations
    first.sum().backward()
    torch.testing.assert_close(x.grad, first.detach())


def test_switches_between_training_and_evaluation_are_followed() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    wrapped, x = autocast.wrap(module, **_FLOAT32), torch.randn(8, 6)
    wrapped(x)
    mean = module[1].running_mean.clone()
    assert mean.abs().sum() > 0
    wrapped.eval()
    torch.testing.assert_close(wrapped(x), module.eval()(x))
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), module(x))
    assert torch.equal(module[1].running_mean, mean)
    assert (wrapped.train()(x) == 0).any()


def test_batches_that_vary_are_compiled_twice(compilations: list[Any]) -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    plain, compiled = copy.deepcopy(module), _compiled(module, **_FLOAT32)
    for rows in (4, 3, 7, 5):
        x, y = torch.randn(rows, 6), torch.randint(0, 4, (rows,))
        for each, called in ((module, compiled), (plain, plain)):
            each.zero_grad()
            cross_entropy(called(x), y).backward()
        for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert len(compilations) == 2


def test_a_size_that_no_kept_tensor_has_may_vary(compilations: list[Any]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.sum(0) * w).exp()

    w = torch.tensor(0.5, requires_grad=True)
    compiled = torch.compile(function, backend=partial(dynamo.backend, options=_FLOAT32), dynamic=True)
    for rows in (3, 5, 6):
        x = torch.randn(rows, 4, requires_grad=True)
        compiled(x, w).sum().backward()
        torch.testing.assert_close(x.grad, (function(x, w) * w).detach().expand(rows, 4))
    assert len(compilations) == 1


def test_numbers_that_a_backward_graph_decides_by_have_code_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows, which no tensor that is kept has."""
    translate = training.translate

    def deciding(graph: Any, given: Any, *others: Any) -> Any:
        if given[2]:
            raise ImportModelError("it decides by sizes")
        return translate(graph, given, *others)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.sum(0) * w).exp()

    monkeypatch.setattr(training, "translate", deciding)
    w = torch.tensor(0.5, requires_grad=True)
    compiled = torch.compile(function, backend=partial(dynamo.backend, options=_FLOAT32), dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4, requires_grad=True)
        compiled(x, w).sum().backward()
        torch.testing.assert_close(x.grad, (function(x, w) * w).detach().expand(rows, 4))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo reads it
def test_gradients_pass_a_graph_break(compilations: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * x

    x = torch.randn(5, 3, requires_grad=True)
    _compiled(function)(x).sum().backward()
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach(), rtol=2e-2, atol=2e-2)
    assert len(compilations) == 2


def test_gradients_of_gradients_are_an_error_that_says_so() -> None:
    x = torch.randn(3, requires_grad=True)
    y = _compiled(lambda x: torch.sin(x).sum())(x)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_gradients_may_be_asked_for_twice() -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    expected = torch.autograd.functional.jacobian(net, x)
    for made in (_compiled(net, policy="mp0"), autocast.wrap(net, policy="mp0")):
        torch.testing.assert_close(torch.autograd.functional.jacobian(made, x), expected)


def test_wrapped_modules_of_one_class_are_compiled_apart() -> None:
    x = torch.randn(2, 4)
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for width in (2, 3):
            module = nn.Sequential(nn.Linear(4, width))
            torch.testing.assert_close(autocast.wrap(module, **_FLOAT32)(x), module(x))


def test_an_option_that_autocast_lacks_is_an_error_that_names_it() -> None:
    with pytest.raises(Exception, match="sharpness"):
        _compiled(nn.Linear(4, 4), sharpness=3)(torch.randn(2, 4))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(16), nn.LayerNorm(16), nn.GroupNorm(2, 16)], ids=str)
def test_norms_of_what_torch_cast_have_gradients(norm: nn.Module) -> None:
    module, x = nn.Sequential(nn.Linear(8, 16), copy.deepcopy(norm), nn.Tanh()), torch.randn(32, 8)
    expected = copy.deepcopy(module)
    for computed in (torch.compile(module, backend="autocast"), expected):
        with torch.autocast("cpu", torch.bfloat16):
            computed(x).float().square().mean().backward()
    for name in ("0.weight", "1.weight", "1.bias"):
        got, wanted = (one.get_parameter(name).grad for one in (module, expected))
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


def test_a_graph_is_read_twice_after_one_that_was_read_once() -> None:
    module, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(3, 8)
    expected = copy.deepcopy(module)
    for computed in (_compiled(module, **_FLOAT32), expected):
        computed(x).square().sum().backward()
        y = computed(x)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
    for got, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)
