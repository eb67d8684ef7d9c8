"""Parameters cast offline: which are stored low, what main reads then, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp
from autocast.errors import AutocastError, CheckpointError, PolicyWarning
from autocast.passes.store_parameters import store_signature
from autocast.training import SGD, CrossEntropy, Trainer, training_step
from tests.architectures import ARCHITECTURES, flatten
from tests.passes.random_modules import modules
from tests.passes.test_auto_cast_models import imported


class Tied(nn.Module):
    """An embedding that is the last layer too, and a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.middle = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits over the table's rows."""
        return self.norm(self.middle(self.table(tokens))) @ self.table.weight.T


TOKENS = torch.randint(0, 50, (2, 3))


@pytest.fixture(scope="module")
def tied() -> autocast.Model:
    torch.manual_seed(0)
    return autocast.from_torch(Tied().eval(), (TOKENS,))


def dtypes(model: autocast.Model) -> dict[str, str]:
    return {name: str(tensor.dtype) for name, tensor in model.params.items()}


def size(model: autocast.Model) -> int:
    return sum(tensor.numpy().nbytes for tensor in model.params.values())


def test_a_parameter_that_is_only_read_through_its_cast_is_stored_low_and_the_cast_is_gone():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((3, 4), "float32"), b: R.Tensor((3,), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                t = R.permute_dims(w)
                y = R.matmul(x, t)
                z = R.exp(R.add(y, b))
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((3, 4), "bfloat16"), b: R.Tensor((3,), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                t = R.permute_dims(w)
                x1 = R.astype(x, "bfloat16")
                y = R.matmul(x1, t, out_dtype="float32")
                z = R.exp(R.add(y, b))
                R.output(z)
            return z

    params = {"w": np.ones((3, 4), "float32"), "b": np.ones(3, "float32")}
    model = amp.autocast(autocast.from_relax(Before, params), policy="parameters=offline")
    tvm.ir.assert_structural_equal(model.mod, Expected)


@pytest.mark.parametrize("preset", ["rules", "mp1", "mp4", "default"])
@pytest.mark.parametrize("parameters", ["offline", "offline_shared"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nothing_is_computed_differently_and_the_bytes_saved_are_as_reported(tied, preset, parameters, dtype):
    policy = amp.Policy(preset=preset, parameters=parameters, dtype=dtype)
    online, offline = amp.cast_model(tied, policy), amp.autocast(tied, policy=policy)
    relax.analysis.well_formed(offline.mod)
    assert torch.equal(online(TOKENS), offline(TOKENS))
    report = offline.report.parameters
    assert size(online) - size(offline) == report.saved_bytes
    assert online.script().count("R.astype(") - offline.script().count("R.astype(") == report.casts
    assert {name for name in tied.params if dtypes(offline)[name] == dtype} == set(report.stored)


def test_another_layout_of_a_parameter_is_cast_with_it_where_its_operator_is_float32(tied):
    model = amp.autocast(tied, policy="mp1, parameters=offline")
    assert model.report.parameters.stored == ("middle.weight",)


def test_a_parameter_of_both_precisions_stays_float32_unless_both_copies_are_asked_for(tied):
    offline = amp.autocast(tied, policy="mp1, parameters=offline")
    assert offline.report.parameters.mixed == ("table.weight",)
    shared = amp.autocast(tied, policy="mp1, parameters=offline_shared")
    assert shared.report.parameters.shared == ("table.weight",)
    kept, copy = shared.params["table.weight"], shared.params["table.weight@bfloat16"]
    np.testing.assert_array_equal(kept.numpy(), tied.params["table.weight"].numpy())
    np.testing.assert_array_equal(copy.numpy(), kept.numpy().astype("bfloat16"))
    assert list(shared.params)[-1] == "table.weight@bfloat16"
    assert "table.weight@bfloat16" in shared.frozen
    assert "1 in float32, too" in shared.report.summary()


def test_pure_stores_every_parameter_low(tied):
    model = amp.autocast(tied, policy="pure")
    assert set(dtypes(model).values()) == {"bfloat16"}
    assert "5 parameters in bfloat16" in model.report.summary()


@given(modules())
@settings(max_examples=40, deadline=None)
def test_of_any_module_only_what_is_not_read_in_float32_is_stored_and_only_once(mod):
    cast = amp.autocast(mod, policy="mp4")
    names = [param.name for param in cast["main"].params]
    stored, which = store_signature(cast, "bfloat16", names)
    relax.analysis.well_formed(stored)
    tvm.ir.assert_structural_equal(stored["main"].ret_ty, cast["main"].ret_ty)
    gone = cast.script().count("R.astype(") - stored.script().count("R.astype(")
    assert gone >= len(which)
    types = {param.name: str(param.ty.dtype) for param in stored["main"].params}
    before = {param.name: str(param.ty.dtype) for param in cast["main"].params}
    assert types == {**before, **dict.fromkeys(which, "bfloat16")}
    again, nothing = store_signature(stored, "bfloat16", names)
    assert nothing == ()
    tvm.ir.assert_structural_equal(again, stored)


def test_a_parameter_that_a_branch_or_a_function_reads_in_float32_stays():
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"),
            c: R.Tensor((), "bool"),
            w: R.Tensor((4, 4), "float32"),
            v: R.Tensor((4, 4), "float32"),
        ):
            R.func_attr({"num_input": 2})
            y = R.matmul(R.matmul(x, w), v)
            if c:
                z = R.exp(w)
            else:
                z = R.matmul(y, v)
            return z

    values = {name: np.eye(4, dtype="float32") for name in "wv"}
    model = autocast.from_relax(relax.transform.Normalize()(Module), values)
    report = amp.autocast(model, policy="parameters=offline").report.parameters
    assert report.mixed == ("w",)
    assert report.stored == ("v",)


def test_a_parameter_that_is_returned_stays():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            return (y, w)

    model = autocast.from_relax(Module, {"w": np.eye(4, dtype="float32")})
    assert amp.autocast(model, policy="parameters=offline").report.parameters.mixed == ("w",)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[1e5, 1.0]], "1 of 2 elements overflow: the largest is 1e\\+05, above 6.55e\\+04"),
        ([[1e-9, 1e-9]], "2 of 2 elements underflow to zero: the largest is 1e-09"),
        ([[1e-7, 1e-7]], "its elements are subnormal: the largest is 1e-07"),
    ],
)
def test_a_parameter_that_float16_cannot_hold_is_named_and_stays_float32(values, reason):
    linear = nn.Linear(2, 1, bias=False)
    linear.weight.data = torch.tensor(values)
    model = autocast.from_torch(linear.eval(), (torch.ones(1, 2),))
    explicit = "float16, parameters=offline, low_names=weight"
    with pytest.warns(PolicyWarning, match=f"parameter weight stays float32, as float16 cannot store it: {reason}"):
        low = amp.autocast(model, policy=explicit)
    assert list(low.report.parameters.out_of_range) == ["weight"]
    assert dtypes(low) == {"weight": "float32"}
    assert "1 out of its range" in low.report.summary()
    with pytest.warns(PolicyWarning, match=f"weight stays float32, and so does what reads it.*: {reason}"):
        assert amp.autocast(model, policy="float16, parameters=offline").report.parameters.unread == ("weight",)
    assert amp.autocast(model, policy="bfloat16, parameters=offline").report.parameters.stored == ("weight",)


def test_what_vanishes_beside_large_weights_is_a_rounding_but_a_small_scale_is_not():
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    net[0].weight.data[0, 0] = 1e-9
    net[1].weight.data[0] = 1e-9
    model = autocast.from_torch(net.eval(), (torch.ones(1, 4),))
    with pytest.warns(PolicyWarning, match=r"1\.weight stays float32.*1 of 4 elements underflow"):
        report = amp.autocast(model, policy="float16, pure").report.parameters
    assert "0.weight" in report.stored


def test_named_parameters_alone_are_stored(tied):
    model = amp.cast_parameters(amp.cast_model(tied, "mp4"), ["middle.*"])
    assert model.report.parameters.stored == ("middle.weight", "middle.bias")
    with pytest.warns(PolicyWarning, match=r"'midle.weight' matches no parameter; nearest: middle.weight"):
        amp.cast_parameters(amp.cast_model(tied, "mp4"), "midle.weight")


def test_a_model_that_was_not_autocast_is_refused_with_what_to_try(tied):
    with pytest.raises(AutocastError, match=r"expected a model that was autocast.*try amp\.autocast"):
        amp.cast_parameters(tied)


def test_what_training_updates_keeps_float32_masters():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    model = autocast.from_torch(net.train(), (torch.ones(2, 4),))
    step = amp.autocast(training_step(model, CrossEntropy(), SGD()), policy="pure")
    assert dtypes(step)["0.weight"] == "bfloat16"
    assert dtypes(step)["1.weight"] == "float32"
    batch = (torch.ones(2, 4), torch.tensor([0, 1]))
    trainer = Trainer(model, CrossEntropy(), SGD(), learning_rate=0.1, amp="pure")
    before = trainer.evaluate([batch])
    trainer.step(batch)
    assert trainer.evaluate([batch]) < before


@pytest.mark.parametrize("policy", ["pure", "float16, pure", "mp1, parameters=offline_shared"])
def test_stored_parameters_are_saved_and_loaded_bit_by_bit(tied, tmp_path, policy):
    model = amp.autocast(tied, policy=policy)
    path = model.save_params(tmp_path / "params.safetensors")
    other = model.replace(params={n: tvm.runtime.tensor(t.numpy() * 0) for n, t in model.params.items()})
    loaded = other.load_params(path)
    assert dtypes(loaded) == dtypes(model)
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_parameters_of_another_precision_are_not_loaded(tied, tmp_path):
    path = tied.save_params(tmp_path / "params.safetensors")
    with pytest.raises(CheckpointError, match=r"table.weight is float32\[50, 16\] and not bfloat16\[50, 16\].*policy"):
        amp.autocast(tied, policy="pure").load_params(path)
    with pytest.raises(CheckpointError, match="there is no file"):
        tied.load_params(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["bert", "resnet", "lstm"])
def test_an_architecture_computes_the_same_with_its_parameters_cast_offline(name):
    """But for a BatchNorm's scale, which kernels multiply into a weight before or after it is rounded."""
    built, model = ARCHITECTURES[name](), imported(name, False)
    offline = amp.autocast(model, policy="mp4, parameters=offline")
    assert offline.report.parameters.saved_bytes > 0.4 * size(model)
    found = flatten(offline(*built.args, **built.kwargs))
    expected = flatten(amp.autocast(model, policy="mp4")(*built.args, **built.kwargs))
    for one, other in zip(found, expected, strict=True):
        assert torch.linalg.norm(one - other) <= (1e-2 if name == "resnet" else 0) * torch.linalg.norm(other)


def test_the_peak_of_a_compiled_model_falls_with_its_tables():
    net = nn.Sequential(nn.Embedding(4096, 64), nn.Linear(64, 8)).eval()
    tokens = torch.zeros((1, 4), dtype=torch.int64)
    model = autocast.from_torch(net, (tokens,))
    online, offline = (amp.autocast(model, policy=f"mp4, parameters={how}") for how in ("float32", "offline"))
    table = 4096 * 64 * 2 / 2**20
    assert autocast.get_peak_memory(online, "cpu", [tokens]) - table >= autocast.get_peak_memory(
        offline, "cpu", [tokens]
    )
