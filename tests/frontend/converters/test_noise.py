"""Numbers of torch's distributions: each is drawn as its law says, from the model's seed and step, in kernels of ours.

The seed of each test is fixed; of another one, a test of a law fails once in a million runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from autocast import amp, vm
from autocast.frontend import from_torch
from autocast.training import MSE, SGD, training_step
from autocast.training.evaluation import evaluation_form
from tests.frontend.helpers import Calls, operators

SHAPE = (64, 1024)
MISSED = 1e-6

#: What is drawn, and its law: functions of a tensor of zeros.
CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable]] = {
    "rand": (lambda x: torch.rand(SHAPE), stats.uniform.cdf),
    "rand_like": (torch.rand_like, stats.uniform.cdf),
    "rand in float64": (lambda x: torch.rand_like(x, dtype=torch.float64), stats.uniform.cdf),
    "uniform": (lambda x: x.clone().uniform_(-2, 1), stats.uniform(-2, 3).cdf),
    "randn": (lambda x: torch.randn(SHAPE), stats.norm.cdf),
    "randn_like": (torch.randn_like, stats.norm.cdf),
    "normal in place": (lambda x: x.clone().normal_(3, 2), stats.norm(3, 2).cdf),
    "normal of numbers": (lambda x: torch.normal(3.0, 2.0, SHAPE), stats.norm(3, 2).cdf),
    "normal of a mean": (lambda x: torch.normal(x + 3, 2.0), stats.norm(3, 2).cdf),
    "normal of a deviation": (lambda x: torch.normal(3.0, x + 2), stats.norm(3, 2).cdf),
    "normal of both": (lambda x: torch.normal(x + 3, x + 2), stats.norm(3, 2).cdf),
    "exponential": (lambda x: x.clone().exponential_(2.0), stats.expon(scale=0.5).cdf),
    "log_normal": (lambda x: x.clone().log_normal_(1, 0.5), stats.lognorm(0.5, scale=np.e).cdf),
    "cauchy": (lambda x: x.clone().cauchy_(1, 3), stats.cauchy(1, 3).cdf),
    "gumbel": (lambda x: -x.clone().exponential_().log(), stats.gumbel_r.cdf),
}
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 5.0])
DISCRETE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], dict[int, float]]] = {
    "randint": (lambda x: torch.randint(5, SHAPE), dict.fromkeys(range(5), 0.2)),
    "randint between": (lambda x: torch.randint(-3, 7, SHAPE), dict.fromkeys(range(-3, 7), 0.1)),
    "randint_like": (lambda x: torch.randint_like(x, 8), dict.fromkeys(range(8), 0.125)),
    "randint_like between": (lambda x: torch.randint_like(x, 2, 4), {2: 0.5, 3: 0.5}),
    "integers of 2^40": (lambda x: torch.randint(2**40, SHAPE) >> 37, dict.fromkeys(range(8), 0.125)),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), {0: 0.7, 1: 0.3}),
    "bernoulli of a tensor": (lambda x: x.clone().bernoulli_(x + 0.3), {0: 0.7, 1: 0.3}),
    "geometric": (lambda x: x.clone().geometric_(0.4).clamp(max=4), {1: 0.4, 2: 0.24, 3: 0.144, 4: 0.216}),
    "rand in bfloat16": (
        lambda x: torch.rand_like(x, dtype=torch.bfloat16).float() * 256,
        dict.fromkeys(range(256), 1 / 256),
    ),
    "multinomial": (lambda x: torch.multinomial(WEIGHTS, SHAPE[1], True), {0: 0.125, 2: 0.25, 3: 0.625}),
    "multinomial of rows": (
        lambda x: torch.multinomial((x[:, :4] + WEIGHTS).repeat(64, 1), 1),
        {0: 1 / 8, 2: 1 / 4, 3: 5 / 8},
    ),
}


@functools.cache
def drawn() -> dict[str, np.ndarray]:
    """Everything, in one call of one model of which nothing is left to torch."""
    functions = {name: function for name, (function, _) in {**CONTINUOUS, **DISCRETE}.items()}
    x = torch.zeros(SHAPE)
    model = from_torch(Calls(lambda x: tuple(one(x) for one in functions.values())), (x,), seed=7, fallback="error")
    return {name: value.double().numpy() for name, value in zip(functions, vm.compile(model)(x), strict=True)}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_follow_their_law(name: str) -> None:
    assert stats.kstest(drawn()[name].ravel(), CONTINUOUS[name][1]).pvalue > MISSED


@pytest.mark.parametrize("name", DISCRETE)
def test_whole_numbers_are_as_frequent_as_their_law_says(name: str) -> None:
    values, counts = np.unique(drawn()[name], return_counts=True)
    chances = DISCRETE[name][1]
    assert values.tolist() == sorted(chances)
    assert stats.chisquare(counts, np.array([chances[value] for value in values]) * counts.sum()).pvalue > MISSED


def test_different_calls_are_independent() -> None:
    names = ("randn", "randn_like", "normal in place", "normal of both", "log_normal")
    ranks = [stats.rankdata(drawn()[name]) for name in names]
    correlations = np.corrcoef(ranks)[np.triu_indices(len(names), 1)]
    assert np.abs(correlations).max() * SHAPE[0] ** 0.5 * SHAPE[1] ** 0.5 < 5.5


def test_tails_are_those_of_the_normal_distribution() -> None:
    size = np.abs(drawn()["randn"])
    for bound in (3.0, 3.5, 4.0):
        expected = 2 * stats.norm.sf(bound) * size.size
        assert abs((size > bound).sum() - expected) < 5 * expected**0.5, bound


def test_a_permutation_has_every_number_once() -> None:
    model = from_torch(Calls(lambda x: torch.randperm(x.shape[0]) + x.long()), (torch.zeros(9),), dynamic={"n": (0, 0)})
    assert model.fallbacks == {}
    got = model(torch.zeros(50))
    assert got.tolist() != list(range(50)) and sorted(got.tolist()) == list(range(50))


def test_without_replacement_none_is_chosen_twice() -> None:
    weights = torch.rand(40, 6) + 0.1
    model = from_torch(Calls(lambda w: torch.multinomial(w, 4)), (weights,), fallback="error")
    assert all(len(set(row)) == 4 for row in model(weights).tolist())


def test_a_call_draws_anew_and_a_seed_repeats() -> None:
    x = torch.zeros(5, 7)
    before = torch.random.get_rng_state()
    models = [
        from_torch(Calls(lambda x: x + torch.randn_like(x)), (x,), seed=seed, fallback="error") for seed in (1, 1, 2)
    ]
    first, second, other = map(vm.compile, models)
    a, b = first(x), first(x)
    assert torch.equal(a, second(x)) and torch.equal(b, second(x))
    assert not torch.equal(a, b) and not torch.equal(a, other(x))
    assert torch.equal(before, torch.random.get_rng_state())


def test_sizes_may_be_known_at_run_time() -> None:
    model = from_torch(
        Calls(lambda x: x + torch.randn(x.shape[0], 3)),
        (torch.zeros(4, 3),),
        dynamic={"rows": (0, 0)},
        fallback="error",
    )
    got = vm.compile(model)(torch.zeros(10_000, 3))
    assert stats.kstest(got.ravel(), stats.norm.cdf).pvalue > MISSED


def test_autocast_draws_in_float32() -> None:
    weight, x = torch.randn(32, 32), torch.randn(8, 32)
    model = from_torch(Calls(lambda x: (x @ weight + torch.rand(8, 32)) @ weight), (x,))
    low = amp.autocast(model)
    decision = next(one for one in low.report.decisions if one.operator == "relax.nn.seeded_uniform")
    assert "float32 -> float32" in str(decision)
    assert "bfloat16" in low.script()


class _Coder(nn.Module):
    """A variational autoencoder: what is decoded is drawn around what is encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale, self.decoder = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        mean = self.mean(x)
        noise = torch.randn_like(mean) if noise is None else noise
        return self.decoder(mean + torch.exp(0.5 * self.scale(x)) * noise)


def test_gradients_pass_through_a_mean_and_a_deviation() -> None:
    module, x, labels = _Coder(), torch.randn(16, 6), torch.randn(16, 6)
    model = from_torch(module.train(), (x,), seed=5, fallback="error")
    assert operators(model)["nn.seeded_normal"] == 1
    probe = from_torch(Calls(lambda x: torch.randn(16, 4) + x[:, :4] * 0), (x,), seed=5)
    noise = vm.compile(probe)(x)  # the first numbers of this seed
    F.mse_loss(module(x, noise), labels).backward()
    step = vm.compile(training_step(model, MSE(), SGD()))
    step(x, labels, torch.tensor(1.0))
    for name, parameter in module.named_parameters():
        gradient = parameter.detach() - torch.from_dlpack(step.state[name])
        assert (gradient - parameter.grad).abs().max() < 1e-5, name


def test_no_gradient_passes_through_what_normal_draws() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.normal(self.weight * x, 1.0) + self.weight

    x = torch.full((4, 3), 2.0)
    model = from_torch(Net().train(), (x,), fallback="error")
    step = vm.compile(training_step(model, MSE(), SGD()))
    drawn_ = vm.compile(from_torch(Net().train(), (x,)))(x)
    step(x, torch.zeros(4, 3), torch.tensor(1.0))
    gradient = 1 - torch.from_dlpack(step.state["weight"])
    assert (gradient - (2 * drawn_ / 12).sum(0)).abs().max() < 1e-5


def test_gumbel_softmax_chooses_as_often_as_its_logits_say() -> None:
    logits = torch.log(torch.tensor([0.2, 0.3, 0.5])).expand(20_000, 3).contiguous()
    model = from_torch(Calls(lambda x: F.gumbel_softmax(x, hard=True)), (logits,), seed=1, fallback="error")
    counts = vm.compile(model)(logits).sum(0)
    assert stats.chisquare(counts, [4000, 6000, 10000]).pvalue > MISSED


DROPPED = -1.7580993408473766  # what selu approaches


in_training = pytest.mark.filterwarnings("ignore::autocast.errors.TrainingModeWarning")


@in_training
@pytest.mark.parametrize("features", [False, True])
def test_alpha_dropout_keeps_mean_and_variance(features: bool) -> None:
    x = torch.linspace(-1, 1, 64 * 512).reshape(64, 512, 1)
    module = nn.FeatureAlphaDropout(0.25) if features else nn.AlphaDropout(0.25)
    got = vm.compile(from_torch(module.train(), (x,), seed=3, fallback="error"))(x)
    scale = (0.75 * (1 + 0.25 * DROPPED**2)) ** -0.5
    kept, dropped = scale * x - scale * DROPPED * 0.25, scale * DROPPED * (1 - 0.25)
    is_dropped = torch.isclose(got, torch.tensor(dropped))
    torch.testing.assert_close(torch.where(is_dropped, kept, got), kept)
    assert stats.binomtest(int(is_dropped.sum()), is_dropped.numel(), 0.25).pvalue > MISSED


@in_training
def test_alpha_dropout_of_features_drops_whole_ones() -> None:
    x = torch.rand(8, 16, 9)
    got = vm.compile(from_torch(nn.FeatureAlphaDropout(0.5).train(), (x,), fallback="error"))(x)
    assert all(len(set(row)) in (1, 9) for rows in got.tolist() for row in rows)


@in_training
def test_rrelu_draws_its_slopes() -> None:
    x = -torch.ones(64, 1024)
    got = vm.compile(from_torch(nn.RReLU(0.1, 0.4).train(), (x,), seed=3, fallback="error"))(x)
    assert stats.kstest(-got.numpy().ravel(), stats.uniform(0.1, 0.3).cdf).pvalue > MISSED


@pytest.mark.parametrize(
    "module",
    [
        nn.AlphaDropout(0.3),
        nn.FeatureAlphaDropout(0.3),
        nn.RReLU(),
        nn.RReLU(inplace=True),
        nn.AlphaDropout(1.0),
        nn.Dropout(1.0),
    ],
    ids=repr,
)
def test_what_is_random_in_training_is_not_when_evaluated(module: nn.Module) -> None:
    for shape in ((4, 5, 6), (1, 3)) if isinstance(module, nn.FeatureAlphaDropout) else ((4, 5, 6), ()):
        x = torch.randn(shape)
        got = vm.compile(evaluation_form(from_torch(module.train(), (x,), fallback="error")))(x)
        torch.testing.assert_close(got, module.eval()(x.clone()))
