"""Modules in training mode: what is random is random, what changes is an update, what is fixed is frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F

from autocast import training, vm
from autocast.errors import TrainingError, TrainingModeWarning
from autocast.frontend import from_torch
from autocast.ir import op_name, place_of
from autocast.model.value import Model
from autocast.training import MSE, SGD, training_step
from tests.architectures import ARCHITECTURES
from tests.frontend.helpers import Calls, assert_close, operators, runner
from tests.operators.own.dropout_reference import kept


def _mask(shape: tuple[int, ...], rate: float, stream: int = 0, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(kept(shape, rate, seed, 0, stream))


def test_dropout_drops_and_counts_its_steps() -> None:
    x = torch.randn(5, 7)
    model = from_torch(nn.Dropout(0.3).train(), (x,), seed=9)
    assert model.updated == ("random_state",) and model.num_results == 1
    result, state = runner(model)(x)
    assert_close([result], [torch.where(_mask((5, 7), 0.3, seed=9), x / 0.7, 0)])
    assert state.tolist() == [9, 1]


def test_a_compiled_model_draws_anew_at_every_call() -> None:
    x = torch.ones(64, 64)
    with pytest.warns(TrainingModeWarning, match=r"training mode \(1 x dropout\) and nothing trains it"):
        executable = vm.compile(from_torch(nn.Dropout(0.5).train(), (x,)), "cpu")
    first, second = executable(x).clone(), executable(x).clone()
    assert not torch.equal(first, second)
    for step, result in enumerate((first, second)):
        np.testing.assert_array_equal(result.numpy() != 0, kept((64, 64), 0.5, 0, step))


def test_a_model_says_that_it_is_in_training_mode_and_warns_once() -> None:
    x = torch.randn(4, 3)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.1), nn.Dropout(0.2))
    model = from_torch(module.train(), (x,))
    assert repr(model).endswith("in training mode: 1 x batch statistics, 2 x dropout)")
    with pytest.warns(TrainingModeWarning, match="module.eval"):
        model(x)
    model(x)  # warnings are errors
    vm.compile(training_step(model, MSE(), SGD()))
    assert "training" not in repr(from_torch(module.eval(), (x,)))


def test_statistics_may_be_the_means_of_all_batches() -> None:
    module = nn.BatchNorm1d(3, momentum=None).train()
    step = runner(model := from_torch(copy.deepcopy(module), (torch.randn(8, 3),)))
    assert model.updated == ("running_mean", "running_var", "num_batches_tracked")
    x = torch.randn(8, 3)
    assert_close(step(x), [module(x).detach(), module.running_mean, module.running_var, module.num_batches_tracked])
    again = runner(from_torch(copy.deepcopy(module), (x,)))
    y = torch.randn(8, 3) + 1
    assert_close(again(y), [module(y).detach(), module.running_mean, module.running_var, module.num_batches_tracked])


def test_equal_dropouts_of_one_tensor_stay_two() -> None:
    x = torch.ones(32, 32)
    module = Calls(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))
    a, b, _ = runner(from_torch(module, (x,)))(x)
    assert_close([a, b], [2.0 * _mask((32, 32), 0.5, stream) for stream in (0, 1)])


def test_a_rate_of_nothing_needs_no_random_numbers() -> None:
    x = torch.randn(2, 3)
    model = from_torch(nn.Dropout(0.0).train(), (x,))
    assert model.updated == ()
    assert_close(runner(model)(x), [x])


def test_a_rate_of_all_leaves_nothing() -> None:
    x = torch.randn(2, 3)
    assert_close(runner(from_torch(nn.Dropout(1.0).train(), (x,)))(x)[:1], [torch.zeros(2, 3)])


class _Products(nn.Module):
    """Of rows in which there are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.5, 2.0, 0.0, 3.0, 0.0], [1.5, -1.0, 2.0, 1.0, 0.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumprod(self.weight * x, 1)


def test_cumulative_products_are_differentiated_where_elements_are_0() -> None:
    module, x, target = _Products().train(), torch.rand(2, 5) + 0.5, torch.randn(2, 5)
    before = module.weight.detach().clone()
    executable = vm.compile(training_step(from_torch(module, (x,), fallback="error"), MSE(), SGD()), "cpu")
    executable(x, target, torch.tensor(1.0))
    F.mse_loss(module(x), target).backward()
    assert_close([torch.from_numpy(executable.state["weight"].numpy())], [before - module.weight.grad])


def test_whole_channels_are_dropped_together() -> None:
    x = torch.randn(3, 4, 5, 5)
    result, _ = runner(from_torch(nn.Dropout2d(0.4).train(), (x,)))(x)
    assert_close([result], [torch.where(_mask((3, 4, 1, 1), 0.4), x / 0.6, 0)])


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, scale=0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.tensor([[True, False, True]]), dropout_p=0.2
        ),
    ],
    ids=["plain", "scaled", "causal", "masked"],
)
def test_attention_drops_probabilities(attend: Callable[..., torch.Tensor]) -> None:
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8)
    model = from_torch(Calls(attend), (q, k, v))
    assert "nn.attention" not in operators(model)
    result, _ = runner(model)(q, k, v)

    # torch's probabilities are its attention of an identity matrix.
    identity = torch.eye(3).expand(2, 4, 3, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        probabilities = torch.stack([attend(q, k, identity) for _ in range(200)]).amax(0) * 0.8
    expected = torch.where(_mask((2, 4, 3, 3), 0.2), probabilities / 0.8, 0) @ v
    assert_close([result], [expected], 1e-4)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (9, 6)),
        (nn.BatchNorm2d(6, momentum=0.3), (3, 6, 4, 5)),
        (nn.BatchNorm2d(6, affine=False), (2, 6, 3, 3)),
        (nn.InstanceNorm2d(6, track_running_stats=True), (2, 6, 4, 4)),
    ],
    ids=["1d", "momentum", "plain", "instance"],
)
def test_running_statistics_are_updates(norm: nn.Module, shape: tuple[int, ...]) -> None:
    norm.train().running_var.uniform_(0.5, 2.0)
    x = torch.randn(shape)
    model = from_torch(nn.Sequential(nn.Identity(), norm), (x,))
    counted = not isinstance(norm, nn.InstanceNorm2d)  # which has a counter and leaves it at 0
    names = ("1.running_mean", "1.running_var", *(("1.num_batches_tracked",) if counted else ()))
    assert model.updated == names and set(names) <= model.frozen
    result, *updated = runner(_copied(model))(x)
    expected = norm(x).detach()
    statistics = [norm.running_mean, norm.running_var, *([norm.num_batches_tracked] if counted else [])]
    assert_close([result, *updated], [expected, *statistics])


def _copied(model: Model) -> Model:
    """The model with parameters of its own: torch's are about to change."""
    return model.replace(
        params={name: tvm.runtime.tensor(value.numpy().copy()) for name, value in model.params.items()}
    )


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
@pytest.mark.parametrize("trained", [False, True])
def test_batch_norm_trains_as_its_call_says_and_returns_what_it_saves(trained: bool) -> None:
    def norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._native_batch_norm_legit(x, None, None, mean, variance, trained, 0.1, 1e-5)

    def inputs() -> tuple[torch.Tensor, ...]:
        return x.clone(), torch.full((3,), 0.5), torch.full((3,), 2.0)

    x = torch.randn(4, 3, 5)
    expected = inputs()
    results = from_torch(Calls(norm), inputs())(*(given := inputs()))
    assert_close([*results, *given], [*norm(*expected), *expected])


def test_statistics_of_a_dynamic_batch_count_what_is_there() -> None:
    norm = nn.BatchNorm2d(3).train()
    model = _copied(from_torch(norm, (torch.randn(2, 3, 4, 4),), dynamic={"batch": ("*", 0, 1, 8)}))
    x = torch.randn(5, 3, 4, 4)
    _, mean, variance, _ = runner(model)(x)
    norm(x)
    assert_close([mean, variance], [norm.running_mean, norm.running_var])


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x, times the number of this call."""
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("persistent", [True, False])
def test_any_buffer_that_changes_is_an_update(persistent: bool) -> None:
    x = torch.randn(2, 3)
    module = nn.Sequential(nn.Identity(), Counter(persistent=persistent))
    executable = vm.compile(from_torch(module, (x,)), "cpu")
    for call in (1, 2, 3):
        assert_close([executable(x)], [x * call])


class Halves(nn.Linear):
    """Halves its weight in every call, of which torch asks that no gradient is recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The result with half the weight that there was."""
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


def test_a_parameter_that_the_module_writes_into_is_an_update() -> None:
    x, module = torch.randn(2, 3), Halves(3, 4)
    model = from_torch(module, (x,))
    executable = vm.compile(model, "cpu")
    assert model.updated == ("weight",)
    with torch.no_grad():
        for _ in range(3):
            assert_close([executable(x)], [module(x)])


def test_a_parameter_that_the_module_writes_into_is_not_trained_as_well() -> None:
    model = from_torch(Halves(3, 4), (torch.randn(2, 3),))
    with pytest.raises(TrainingError, match="the module writes into weight when it runs"):
        training_step(model, MSE(), SGD())


def test_what_needs_no_gradient_is_frozen() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    frozen = from_torch(module.eval(), (torch.randn(2, 3),)).frozen
    assert frozen == {"1.running_mean", "1.running_var", "2.weight", "2.bias"}


def test_every_variable_knows_its_submodule() -> None:
    module = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(3, 4), nn.Tanh())
    main = from_torch(module, (torch.randn(2, 3),)).main
    modules = {
        op_name(binding.value): place_of(binding.var).module for block in main.body.blocks for binding in block.bindings
    }
    assert modules == {
        "relax.nn.relu": "0.0",
        "relax.permute_dims": "1",
        "relax.matmul": "1",
        "relax.add": "1",
        "relax.tanh": "2",
    }


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "resnet"])
def test_architectures_import_in_training_mode(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    architecture.module.train()
    model = from_torch(architecture.module, architecture.args, example_kwargs=architecture.kwargs)
    dropouts = sum(isinstance(m, nn.Dropout) and m.p > 0 for m in architecture.module.modules())
    assert operators(model)["nn.seeded_dropout"] >= dropouts
    assert ("random_state" in model.updated) == (operators(model)["nn.seeded_dropout"] > 0)
    statistics = sum(isinstance(m, nn.BatchNorm2d) for m in architecture.module.modules())
    assert sum(name.endswith("running_var") for name in model.updated) == statistics


@pytest.mark.parametrize(
    "scaled", [False, pytest.param(True, marks=pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning"))]
)
@pytest.mark.parametrize("training_mode", [True, False])
def test_an_embedding_for_padding_learns_nothing(scaled: bool, training_mode: bool) -> None:
    """Where gradients are divided by how often an index occurs, too: that is left to torch."""
    module = nn.Sequential(nn.Embedding(11, 8, padding_idx=0, scale_grad_by_freq=scaled), nn.Linear(8, 5))
    module.train(training_mode)
    ids, labels = torch.tensor([[0, 1, 2, 3], [4, 0, 0, 1]]), torch.randint(0, 5, (2, 4))
    before = module[0].weight.detach().clone()
    step = training.training_step(from_torch(module, (ids,)), training.CrossEntropy(), training.SGD())
    executable = vm.compile(step, "cpu")
    executable(ids, labels, torch.tensor(1.0))
    F.cross_entropy(module(ids).flatten(0, 1), labels.flatten()).backward()
    got = torch.from_numpy(executable.state["0.weight"].numpy())
    assert torch.equal(got[0], before[0])
    assert_close([got], [before - module[0].weight.grad])
