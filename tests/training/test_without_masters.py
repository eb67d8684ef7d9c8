"""Training without float32 masters: what is stored, and that stochastic rounding learns where the nearest stalls."""

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
from autocast.errors import CheckpointError, PolicyWarning
from autocast.training import LAMB, MSE, SGD, AdamW, CrossEntropy, Trainer, training_step
from tests.training.modules import batches, imported, imported_network, network

NEAREST = amp.Policy(fp32_params=False)
STOCHASTIC = amp.Policy(fp32_params=False, weight_gradients="bf16sr")
WEIGHTS = ("0.weight", "0.bias", "2.weight", "2.bias")


def trainer(policy: amp.Policy) -> Trainer:
    return Trainer(imported_network(), MSE(), AdamW(), learning_rate=0.01, amp=policy)


def test_a_step_reads_and_replaces_the_low_parameter():
    @I.ir_module
    class Before:
        @R.function(private=True)
        def sgd(parameter: R.Tensor((4, 3), "float32"), gradient: R.Tensor((4, 3), "float32")) -> R.Tuple(
            R.Tensor((4, 3), "float32")
        ):
            with R.dataflow():
                new = R.subtract(parameter, gradient)
                R.output(new)
            return (new,)

        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 3), "float32")):
            R.func_attr({"num_input": 1, "updates": [0]})
            cls = Before
            with R.dataflow():
                y = R.matmul(x, w)
                g = R.exp(w)
                u = cls.sgd(w, g)
                n = u[0]
                R.output(y, n)
            return (y, n)

    @I.ir_module
    class Expected:
        @R.function(private=True)
        def sgd(parameter: R.Tensor((4, 3), "float32"), gradient: R.Tensor((4, 3), "float32")) -> R.Tuple(
            R.Tensor((4, 3), "float32")
        ):
            with R.dataflow():
                new = R.subtract(parameter, gradient)
                R.output(new)
            return (new,)

        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 3), "bfloat16")):
            R.func_attr({"num_input": 1, "updates": [0]})
            cls = Expected
            with R.dataflow():
                v = R.astype(w, "float32")
                x1 = R.astype(x, "bfloat16")
                y = R.matmul(x1, w, out_dtype="float32")
                g = R.exp(v)
                u = cls.sgd(v, g)
                n = u[0]
                r = R.astype(n, "bfloat16")
                R.output(y, r)
            return (y, r)

    model = autocast.from_relax(Before, {"w": np.ones((4, 3), "float32")})
    found = amp.autocast(model, policy=NEAREST)
    tvm.ir.assert_structural_equal(found.mod, Expected)
    assert str(found.params["w"].dtype) == "bfloat16"


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), AdamW(), LAMB()], ids=repr)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_are_stored_low_and_the_state_of_the_optimizer_in_float32(optimizer, dtype):
    policy = amp.Policy(preset="pure", dtype=dtype, fp32_params=False)
    model = amp.autocast(training_step(imported_network(), MSE(), optimizer), policy=policy)
    relax.analysis.well_formed(model.mod)
    dtypes = {name: str(tensor.dtype) for name, tensor in model.params.items()}
    assert {dtypes.pop(name) for name in WEIGHTS} == {dtype}
    assert dtypes.pop("optimizer_step") == "int64"
    assert set(dtypes.values()) <= {"float32"}
    elements = sum(np.prod(model.params[name].shape) for name in WEIGHTS)
    assert model.report.parameters.saved_bytes == 2 * elements
    assert model.report.parameters.stored == WEIGHTS


def test_a_parameter_that_is_only_read_in_float32_stays_float32():
    module = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 7))
    step = training_step(imported(module), MSE(), SGD())
    report = amp.autocast(step, policy=NEAREST).report.parameters
    assert {"1.weight", "1.bias"} <= set(report.unread)
    assert {"0.weight", "2.weight"} <= set(report.stored)


def test_an_update_is_computed_in_float32_and_rounded_to_the_nearest():
    (x, y), module = batches(1)[0], network()
    model = imported(module)
    low = Trainer(model, MSE(), SGD(), learning_rate=0.1, amp=NEAREST)
    weights = {name: tensor.numpy().astype("float32") for name, tensor in low.executable.state.items()}
    module.load_state_dict({name: torch.tensor(weights[name]) for name in WEIGHTS})
    full = Trainer(imported(module), MSE(), SGD(), learning_rate=0.1, amp="bfloat16")
    assert low.step((x, y)) == full.step((x, y))
    for name in low.step_model.report.parameters.stored:
        expected = full.executable.state[name].numpy().astype("bfloat16")
        np.testing.assert_array_equal(low.executable.state[name].numpy(), expected)


@pytest.mark.parametrize("policy", [NEAREST, STOCHASTIC, amp.Policy(fp32_params=False, accumulation="bf16sr")], ids=str)
def test_a_run_that_is_resumed_goes_on_to_the_last_bit(tmp_path, policy):
    data = batches(6)
    whole = trainer(policy)
    expected = whole.fit(data, progress=False)
    first = trainer(policy)
    assert first.fit(data[:3], progress=False) == expected[:3]
    second = trainer(policy)
    second.load(first.save(tmp_path / "run.safetensors"))
    assert second.fit(data[3:], progress=False) == expected[3:]
    for name, tensor in whole.executable.state.items():
        assert second.executable.state[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_a_checkpoint_with_masters_says_what_it_is_where_there_are_none(tmp_path):
    path = trainer(amp.Policy()).save(tmp_path / "run.safetensors")
    with pytest.raises(CheckpointError, match=r"0\.weight is float32\[8, 5\] and not bfloat16\[8, 5\]"):
        trainer(NEAREST).load(path)


def test_what_was_trained_comes_back_in_float32():
    low, module, data = trainer(STOCHASTIC), network(), batches(4)
    low.fit(data, progress=False)
    low.to_torch(module)
    for name, tensor in module.named_parameters():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.detach().numpy(), low.executable.state[name].numpy().astype("float32"))
    model = low.trained()
    assert {str(tensor.dtype) for tensor in model.params.values()} == {"float32"}
    loss = nn.functional.mse_loss(model(data[0][0]), data[0][1])
    assert low.evaluate(data[:1]) == pytest.approx(float(loss), rel=1e-2)


def test_a_parameter_that_float16_cannot_hold_keeps_its_master():
    module = network()
    with torch.no_grad():
        module[0].weight[0, 0] = 1e6
    with pytest.warns(PolicyWarning, match=r"0\.weight stays float32"):
        policy = amp.Policy(dtype="float16", fp32_params=False)
        found = Trainer(imported(module), MSE(), SGD(), learning_rate=0.01, amp=policy)
    assert list(found.step_model.report.out_of_range) == ["0.weight"]
    assert "0.weight" in found.step_model.report.parameters.unread


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
    return x, x[:, :4].argmax(1)


def test_stochastic_rounding_learns_where_rounding_to_the_nearest_stalls():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    model = autocast.from_torch(module, _batch(0)[:1])

    def loss(policy: amp.Policy | None) -> float:
        run = Trainer(model, CrossEntropy(), SGD(momentum=0.9), learning_rate=0.002, amp=policy)
        return float(np.mean(run.fit(_batch, steps=300, progress=False)[-20:]))

    float32 = loss(None)
    assert loss(STOCHASTIC) < 1.03 * float32
    assert loss(NEAREST) > 1.2 * float32, "updates are less than half a unit in the last place"
