"""The evaluation form: no dropout, running statistics, no updates, and no parameter that nothing reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.errors import TrainingModeWarning
from autocast.model import Model
from autocast.training import MSE, SGD, Trainer
from autocast.training.evaluation import evaluation_form


def test_batch_statistics_become_running_ones_and_updates_disappear():
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((2, 3, 4, 4), "float32"),
            gamma: R.Tensor((3,), "float32"),
            beta: R.Tensor((3,), "float32"),
            mean: R.Tensor((3,), "float32"),
            variance: R.Tensor((3,), "float32"),
            random_state: R.Tensor((2,), "int32"),
        ):
            R.func_attr({"num_input": 1, "updates": [2, 3, 4]})
            with R.dataflow():
                d = R.nn.dropout(x, rate=0.1)
                n = R.nn.batch_norm(d[0], gamma, beta, mean, variance, axis=1, training=True)
                state = R.add(random_state, R.const(1, "int32"))
                out = (n[0], n[1], n[2], state)
                R.output(out)
            return out

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((2, 3, 4, 4), "float32"),
            gamma: R.Tensor((3,), "float32"),
            beta: R.Tensor((3,), "float32"),
            mean: R.Tensor((3,), "float32"),
            variance: R.Tensor((3,), "float32"),
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                n = R.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
                y = n[0]
                R.output(y)
            return y

    names = ("gamma", "beta", "mean", "variance")
    params = {name: tvm.runtime.tensor(np.ones(3, "float32")) for name in names}
    params["random_state"] = tvm.runtime.tensor(np.zeros(2, "int32"))
    found = evaluation_form(Model(Before, params, frozen=frozenset({"mean", "random_state"})))
    tvm.ir.assert_structural_equal(found.mod, Expected)
    assert tuple(found.params) == names
    assert found.frozen == {"mean"}


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_model_without_such_parts_stays_what_it_is(outputs):
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor):
            return (self.linear(x), x + 1)[:outputs]

    model = autocast.from_torch(Module(), (torch.randn(2, 3),))
    found = evaluation_form(model)
    tvm.ir.assert_structural_equal(found.mod, model.mod)
    assert list(found.params) == list(model.params)


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)),
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2)),
        lambda: torch.nn.Sequential(torch.nn.Unflatten(1, (2, 3, 1)), torch.nn.BatchNorm2d(2), torch.nn.Dropout2d(0.5)),
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6, affine=False)),
    ],
    ids=["dropout", "batch_norm_1d", "feature_dropout", "batch_norm_without_weights"],
)
def test_a_module_imported_in_training_mode_evaluates_as_in_evaluation_mode(build):
    module = build()
    for name, buffer in module.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.uniform_(0.5, 1.5)
    x = torch.randn(4, 6)
    model = evaluation_form(autocast.from_torch(module.train(), (x,)))
    torch.testing.assert_close(model(x), module.eval()(x).detach(), rtol=1e-5, atol=1e-5)


class _Moving(torch.nn.Module):
    """Subtracts a moving mean of its own, which it moves in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("moving", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        self.moving.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return y - self.moving


def test_what_else_a_module_updates_is_evaluated_as_it_is_and_warned_of():
    model = autocast.from_torch(_Moving().train(), (torch.randn(5, 6),))
    with pytest.warns(TrainingModeWarning, match=r"updates moving by the module's own code"):
        evaluation_form(model)


def test_averages_over_all_batches_are_what_a_norm_is_evaluated_by():
    module, x = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8, momentum=None)), torch.randn(16, 3)
    trainer = Trainer(autocast.from_torch(module.train(), (x,)), MSE(), SGD(), learning_rate=0.05)
    for step in range(3):
        trainer.step((x + step, torch.randn(16, 8)))
    trainer.to_torch(module)
    torch.testing.assert_close(trainer.trained()(x), module.eval()(x), rtol=1e-5, atol=1e-5)


def test_a_norm_that_is_called_twice_is_evaluated_by_what_both_calls_moved():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)

        def forward(self, a, b):
            return self.norm(self.layer(a)) - self.norm(self.layer(b))

    module, a, b = Twice(), torch.randn(5, 6), 3 * torch.randn(5, 6) + 1
    trainer = Trainer(autocast.from_torch(module.train(), (a, b)), MSE(), SGD(), learning_rate=0.05)
    for _ in range(3):
        trainer.step((a, b, torch.randn(5, 8)))
    trainer.to_torch(module)
    torch.testing.assert_close(trainer.trained()(a, b), module.eval()(a, b), rtol=1e-5, atol=1e-5)
