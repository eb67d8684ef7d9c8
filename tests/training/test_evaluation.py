"""The evaluation form: no dropout, running statistics, no updates, and no parameter that nothing reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.model import Model
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
