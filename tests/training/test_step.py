"""A training step is a model: what it takes, what it returns, what it updates, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import autocast
from autocast import amp, ir, vm
from autocast.errors import TrainingError
from autocast.training.loss_scaling import DynamicLossScaling
from autocast.training.losses import MSE, CrossEntropy
from autocast.training.optimizers import SGD, AdamW
from autocast.training.step import training_step
from tests.training.modules import batches, imported, imported_network, network, rate


def test_inputs_results_and_state_have_names():
    step = training_step(imported_network(), MSE(), SGD(momentum=0.9), loss_scaling=DynamicLossScaling())
    assert step.input_names == ("input", "labels", "learning_rate")
    assert step.output_names == ("loss",)
    assert step.num_results == 1
    parameters = ("0.weight", "0.bias", "2.weight", "2.bias")
    slots = tuple(f"momentum/{name}" for name in parameters)
    scaling = ("loss_scale", "finite_steps", "overflow_steps")
    assert tuple(step.params) == (*parameters, "optimizer_step", *slots, *scaling) == step.updated
    assert not any(step.params[name].numpy().any() for name in (*slots, "optimizer_step"))
    relax.analysis.well_formed(step.mod)


def test_the_loss_is_that_of_the_parameters_before_the_update():
    module, step = network(), training_step(imported_network(), MSE(), SGD())
    x, y = batches(1)[0]
    expected = nn.functional.mse_loss(module(x), y).detach()
    torch.testing.assert_close(step(x, y, rate(0.1)), expected)
    torch.testing.assert_close(step(x, y, learning_rate=rate(0.1)), expected)


def test_every_call_of_a_compiled_step_goes_on_from_the_last_and_the_model_stays():
    step = training_step(imported_network(), MSE(), SGD())
    before = {name: value.numpy().copy() for name, value in step.params.items()}
    executable = vm.compile(step)
    x, y = batches(1)[0]
    losses = [float(executable(x, y, rate(0.1))) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 5
    for name, value in before.items():
        np.testing.assert_array_equal(step.params[name].numpy(), value)


def test_a_learning_rate_of_zero_changes_no_parameter():
    executable = vm.compile(training_step(imported_network(), MSE(), AdamW()))
    before = executable.state["0.weight"].numpy().copy()
    executable(*batches(1)[0], rate(0.0))
    np.testing.assert_array_equal(executable.state["0.weight"].numpy(), before)


def test_frozen_parameters_and_buffers_stay_as_they_are():
    module = network()
    module[0].requires_grad_(False)
    step = training_step(imported(module), MSE(), SGD())
    assert step.updated == ("2.weight", "2.bias", "optimizer_step")
    assert {"0.weight", "0.bias"} <= step.params.keys()


def test_statistics_of_the_batch_are_updated_beside_the_parameters():
    def build():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 7)).train()

    module = build()
    executable = vm.compile(training_step(imported(build()), MSE(), SGD()))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for x, y in batches(3):
        executable(x, y, rate(0.1))
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    for name, value in module.state_dict().items():
        got = torch.from_dlpack(executable.state[name])
        torch.testing.assert_close(got, value, rtol=1e-4, atol=1e-5)


def test_dropout_draws_anew_in_every_step():
    module = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 7)).train()
    step = training_step(imported(module), MSE(), SGD())
    assert "random_state" in step.updated
    executable = vm.compile(step)
    x, y = batches(1)[0]
    losses = [float(executable(x, y, rate(0.0))) for _ in range(3)]
    assert len(set(losses)) == 3
    assert losses == [float(vm.compile(step.replace())(x, y, rate(0.0))), *losses[1:]]


def test_a_batch_may_be_of_any_size():
    module = network()
    model = autocast.from_torch(module, (torch.zeros(4, 5),), dynamic={"batch": ("*", 0, 1, 64)})
    executable = vm.compile(training_step(model, CrossEntropy(), SGD()))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    reference = network()
    reference.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    for rows in (3, 17, 1):
        x, y = torch.randn(rows, 5), torch.randint(0, 7, (rows,))
        loss = executable(x, y, rate(0.1))
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(reference(x), y)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)


def test_autocast_rounds_products_but_neither_parameters_nor_their_updates():
    step = training_step(imported_network(), MSE(), AdamW(), clip_norm=1.0)
    low = amp.autocast(step)
    assert low.report.casts > 0
    assert low.updated == step.updated
    kept = {var.name_hint: function for var, function in ir.relax_functions(step.mod) if var.name_hint != "main"}
    for name, function in kept.items():
        tvm.ir.assert_structural_equal(low.mod[name], function)
    assert [var.ty.dtype for var in low.main.params] == [var.ty.dtype for var in step.main.params]


def test_training_in_bfloat16_follows_training_in_float32():
    step = training_step(imported_network(), MSE(), AdamW())
    full, low = vm.compile(step), vm.compile(amp.autocast(step))
    for x, y in batches(1) * 30:
        losses = [float(executable(x, y, rate(0.02))) for executable in (full, low)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    moved = full.state["0.weight"].numpy() - step.params["0.weight"].numpy()
    error = low.state["0.weight"].numpy() - full.state["0.weight"].numpy()
    assert np.linalg.norm(error) < 0.05 * np.linalg.norm(moved)


def test_gradients_are_computed_once_however_often_they_are_read():
    """The update, the norm and the check read the same gradient: the backward pass is there once."""

    def products(**options):
        step = training_step(imported_network(), MSE(), AdamW(), **options)
        bindings = [binding.value for block in step.main.body.blocks for binding in block.bindings]
        return sum(ir.is_op(value, "relax.matmul") for value in bindings)

    assert products() == products(clip_norm=1.0, loss_scaling=DynamicLossScaling()) == 5


class Partly(nn.Linear):
    """float32 but for what it computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double()).float()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        pytest.param(
            lambda: training_step(imported(network().requires_grad_(False)), MSE(), SGD()),
            TrainingError,
            "none of the model's 4 parameters can be trained; expected one that is floating-point and not in",
            id="everything frozen",
        ),
        pytest.param(
            lambda: training_step(training_step(imported_network(), MSE(), SGD()), MSE(), SGD()),
            TrainingError,
            "the model has an input 'labels' already",
            id="a training step",
        ),
        pytest.param(
            lambda: training_step(imported(Partly(5, 7).double()), MSE(), SGD()),
            TrainingError,
            r"the parameters weight, bias are float64, .* Import module.float\(\), or .* by requires_grad_\(False\)",
            id="float64",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
