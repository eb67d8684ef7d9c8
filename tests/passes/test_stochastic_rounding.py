"""Sums in bfloat16 with stochastic rounding: which are rounded, once, and by random numbers that can be drawn again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp
from autocast.passes.stochastic_rounding import round_stochastically
from autocast.training import MSE, SGD, CrossEntropy, training_step
from tests.operators.own.rounding_reference import rounded
from tests.passes.golden import check

STREAM = 1 << 20
STATE = np.zeros(2, "int32")


def test_the_sum_of_a_low_product_is_rounded_whatever_dtype_its_result_has():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 4), "float32"), v: R.Tensor((4, 3), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.exp(y)
                u = R.matmul(R.nn.relu(R.matmul(z, w)), v)
                R.output(u)
            return u

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 4), "float32"), v: R.Tensor((4, 3), "float32")):
            with R.dataflow():
                x1 = R.astype(x, "bfloat16")
                w1 = R.astype(w, "bfloat16")
                p = R.matmul(x1, w1, out_dtype="float32")
                s = R.nn.stochastic_round(p, R.const(STATE), stream=1048576)
                y = R.astype(s, "float32")
                z = R.exp(y)
                z1 = R.astype(z, "bfloat16")
                q = R.matmul(z1, w1, out_dtype="float32")
                t = R.nn.stochastic_round(q, R.const(STATE), stream=1048577)
                r = R.nn.relu(t)
                v1 = R.astype(v, "bfloat16")
                o = R.matmul(r, v1, out_dtype="float32")
                a = R.nn.stochastic_round(o, R.const(STATE), stream=1048578)
                u = R.astype(a, "float32")
                R.output(u)
            return u

    check(Before, Expected, policy="accumulation=bf16sr")
    tvm.ir.assert_structural_equal(amp.AutoCast(policy="accumulation=bf16sr")(Before), Expected)


def test_a_product_that_stays_float32_is_not_rounded():
    @I.ir_module
    class Product:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            return y

    check(Product, Product, policy="mp0, accumulation=bf16sr, weight_gradients=bf16sr")


def test_a_policy_without_stochastic_rounding_gives_the_same_module_back():
    mod = tvm.IRModule({})
    assert round_stochastically(mod, amp.Policy()) is mod


def test_a_module_that_counts_no_steps_rounds_the_same_at_each_call():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    module, x = Product(), torch.randn(8, 32)
    model = autocast.from_torch(module, (x,))
    exact, found = amp.autocast(model)(x).numpy(), amp.autocast(model, policy="accumulation=bf16sr")
    np.testing.assert_array_equal(found(x).numpy(), rounded(exact, stream=STREAM).astype("float32"))
    np.testing.assert_array_equal(found(x).numpy(), found(x).numpy())


def test_convolutions_are_products_too():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    x = torch.randn(2, 3, 9, 9)
    found = amp.autocast(autocast.from_torch(module, (x,)), policy="accumulation=bf16sr")
    assert found.script().count("stochastic_round") == 2
    expected = module(x).detach().numpy()
    assert np.abs(found(x).numpy() - expected).max() < 0.05 * np.abs(expected).max()


def test_weight_gradients_are_those_of_linear_layers():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 7 * 7, 4)).train()
    step = training_step(autocast.from_torch(module, (torch.randn(2, 3, 9, 9),)), CrossEntropy(), SGD())
    (call,) = _calls(amp.autocast(step, policy="weight_gradients=bf16sr"), "relax.nn.stochastic_round")
    assert [int(size) for size in call.ty.shape] == [4, 8 * 7 * 7]


def test_products_in_branches_are_rounded():
    @I.ir_module
    class Branches:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
            if flag:
                y = R.matmul(x, w)
                z = R.nn.relu(y)
            else:
                y = R.matmul(w, x)
                z = R.tanh(y)
            return z

    after = amp.autocast(Branches, policy="accumulation=bf16sr")
    relax.analysis.well_formed(after)
    assert after.script().count("stochastic_round") == 2


def _calls(model: autocast.Model, name: str) -> list[relax.Call]:
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Call) and name in str(value.op)]


@pytest.fixture(scope="module")
def step() -> autocast.Model:
    module = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4))
    return training_step(autocast.from_torch(module, (torch.arange(5),)), CrossEntropy(), SGD())


def test_weight_gradients_are_those_that_products_compute(step):
    after = amp.autocast(step, policy="weight_gradients=bf16sr")
    roundings = _calls(after, "stochastic_round")
    assert [tuple(map(int, call.args[0].ty.shape)) for call in roundings] == [(8, 16), (4, 8)]
    assert len({int(call.attrs["stream"]) for call in roundings}) == 2


def test_a_weight_gradient_whose_sum_was_rounded_is_not_rounded_again(step):
    both = amp.autocast(step, policy="weight_gradients=bf16sr, accumulation=bf16sr")
    one = amp.autocast(step, policy="accumulation=bf16sr")
    tvm.ir.assert_structural_equal(both.mod, one.mod)


def test_without_masters_the_weights_round_stochastically_as_their_gradients_do(step):
    nearest = amp.autocast(step, policy="fp32_params=False")
    assert not _calls(nearest, "stochastic_round")
    stochastic = amp.autocast(step, policy="fp32_params=False, weight_gradients=bf16sr")
    stored = stochastic.report.parameters.stored
    assert stored == nearest.report.parameters.stored
    assert len(_calls(stochastic, "stochastic_round")) == 2 + len(stored)


def test_a_training_step_rounds_by_its_own_count_of_steps(step):
    after = amp.autocast(step, policy="accumulation=bf16sr")
    (count,) = [var for var in after.main.params if var.name == "optimizer_step"]
    states = {call.args[1] for call in _calls(after, "stochastic_round")}
    assert len(states) == 1 and not isinstance(next(iter(states)), type(relax.const(0)))
    assert count in relax.analysis.free_vars(relax.SeqExpr(after.main.body.blocks, next(iter(states))))


@pytest.mark.parametrize("policy", ["accumulation=bf16sr", "fp32_params=False, weight_gradients=bf16sr"])
def test_what_is_rounded_already_is_not_rounded_again(step, policy):
    once = amp.autocast(step, policy=policy)
    tvm.ir.assert_structural_equal(amp.autocast(once, policy=policy).mod, once.mod)


def _parallel(**options: object) -> autocast.Model:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model = autocast.from_torch(module.train(), (torch.randn(8, 64),))
    return training_step(model, MSE(), SGD(), **options)


@pytest.mark.parametrize(("more", "sent"), [("", "float32"), (", low_ops=collective.all_reduce_start", "bfloat16")])
def test_gradients_of_several_processes_are_rounded_before_they_are_sent(more, sent):
    after = amp.autocast(_parallel(parallel="data"), policy=f"weight_gradients=bf16sr{more}")
    roundings = _calls(after, "stochastic_round")
    assert [tuple(map(int, call.args[0].ty.shape)) for call in roundings] == [(64, 64), (64, 64)]
    assert {str(call.args[0].ty.dtype) for call in roundings} == {"float32"}
    _, gradients = _calls(after, "collective.all_reduce_start")
    bound = {binding.var: binding.value for block in after.main.body.blocks for binding in block.bindings}
    parts = [bound[part] for part in gradients.args[0].fields if len(part.ty.shape) == 2]
    assert {str(part.ty.dtype) for part in parts} == {sent}
    rounded = parts if sent == "bfloat16" else [bound[part.args[0]] for part in parts]
    assert all("stochastic_round" in str(part.op) for part in rounded)


@pytest.mark.parametrize("more", ["", ", low_ops=collective.all_reduce_start"])
def test_what_is_sent_in_bfloat16_is_right_in_the_mean(more):
    """Errors of 4096 elements, each of them at most a unit in the last place, add up to less than six deviations."""
    torch.manual_seed(0)
    step = _parallel(parallel="data")
    batch = torch.randn(8, 64), torch.randn(8, 64), torch.tensor(1.0)
    updates = []
    for policy in ("rules", f"weight_gradients=bf16sr{more}"):
        model = amp.autocast(step, policy=policy)
        executable = autocast.compile(model)
        executable(*batch)
        updates.append(executable.state["1.weight"].numpy() - model.params["1.weight"].numpy())
    exact, rounded = updates
    unit = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)
    errors = (rounded - exact) / unit
    assert np.abs(errors).max() <= 1.1  # the difference of two parameters is rounded, too
    assert np.abs(errors).mean() > 0.1, "they are rounded"
    assert np.abs(errors.mean()) < 6 * 0.5 / 64
