"""Parameters that the low dtype cannot hold: they, and what reads them, stay float32, and the report names them."""

from __future__ import annotations

from collections.abc import Callable

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
from autocast.errors import PolicyWarning
from autocast.model import Model
from autocast.training import SGD, CrossEntropy, training_step

FULL = "float32"


def _linear(value: float, layers: int = 2) -> Model:
    """Layers of which the first has one weight of some value."""
    net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(layers)])
    net[0].weight.data[0, 0] = value
    return autocast.from_torch(net.eval(), (torch.ones(1, 4),))


def _modes(model: Model) -> list[str]:
    return [decision.mode for decision in model.report.decisions if decision.operator == "relax.matmul"]


@pytest.mark.parametrize("policy", ["float16", "float16, mp1", "float16, mp4", "float16, pure"])
@pytest.mark.parametrize("value", [1e5, -7e4])
def test_a_product_with_a_weight_that_overflows_is_float32(policy: str, value: float) -> None:
    model = _linear(value)
    with pytest.warns(
        PolicyWarning, match=r"the parameter 0\.weight stays float32, and so does what reads it.*1 of 16"
    ):
        low = amp.autocast(model, policy=policy)
    assert list(low.report.out_of_range) == ["0.weight"]
    assert _modes(low) == [FULL, "float16"]
    assert low.report.is_optimal
    assert "1 parameter that float16 cannot hold" in low.report.summary()
    assert "0.weight: float16 cannot hold it: 1 of 16 elements overflow" in str(low.report)
    x = torch.full((1, 4), 0.1)  # so that the activation does not overflow, which is another matter
    assert torch.allclose(low(x), model(x), rtol=1e-2)
    assert amp.autocast(model, policy=policy.replace("float16", "bfloat16")).report.out_of_range == {}


@pytest.mark.parametrize(("value", "reason"), [(1e-9, "4 of 4 elements underflow to zero"), (1e-7, "subnormal")])
def test_a_scale_that_vanishes_or_loses_its_digits_keeps_its_operator_float32(value: float, reason: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((4,), value))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale

    model = autocast.from_torch(Scaled(), (torch.ones(1, 4),))
    with pytest.warns(PolicyWarning, match=reason):
        low = amp.autocast(model, dtype="float16")
    assert torch.allclose(low(torch.ones(1, 4)), model(torch.ones(1, 4)), rtol=1e-2, atol=0)


def test_infinities_and_nan_are_held() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ x.T + self.mask, -1)

    model = autocast.from_torch(Masked(), (torch.ones(4, 4),))
    assert amp.autocast(model, dtype="float16").report.out_of_range == {}


def test_bfloat16_ends_just_below_float32() -> None:
    with pytest.warns(PolicyWarning, match="above 3.39e"):
        low = amp.autocast(_linear(3.4e38), dtype="bfloat16")
    assert _modes(low) == [FULL, "bfloat16"]


def test_who_names_it_means_it() -> None:
    low = amp.autocast(_linear(1e5), policy="float16, low_names=0.weight")
    assert _modes(low) == ["float16", "float16"] and low.report.out_of_range == {}
    assert _modes(amp.autocast(_linear(1e5), policy="float16, low_ops=matmul")) == ["float16", "float16"]
    assert amp.autocast(_linear(1e5), policy="float16, mp0").report.out_of_range == {}


def test_a_name_that_every_operator_would_read_in_float32_anyway_is_not_warned_of() -> None:
    norm = nn.LayerNorm(4)
    norm.weight.data[0] = 1e5
    model = autocast.from_torch(norm, (torch.ones(1, 4),))
    assert amp.autocast(model, dtype="float16").report.out_of_range == {}


@I.ir_module
class Passed:
    @R.function
    def product(x: R.Tensor((4, 4), "float32"), v: R.Tensor((4, 4), "float32")):
        y = R.matmul(x, v)
        return y

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
        R.func_attr({"num_input": 1})
        cls = Passed
        t = R.permute_dims(w)
        y = cls.product(x, t)
        z = R.matmul(y, y)
        return z


def test_it_is_the_same_in_another_layout_and_in_another_function() -> None:
    model = autocast.from_relax(Passed, {"w": np.full((4, 4), 1e5, "float32")})
    with pytest.warns(PolicyWarning, match="the parameter w stays float32"):
        low = amp.autocast(model, dtype="float16")
    modes = {decision.function: decision.mode for decision in low.report.decisions if "matmul" in decision.operator}
    assert modes == {"product": FULL, "main": "float16"}


def test_a_training_step_multiplies_by_the_master() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[2].weight.data[0, 0] = 1e5
    model = autocast.from_torch(net, (torch.ones(2, 4),))
    with pytest.warns(PolicyWarning, match=r"2\.weight stays float32"):
        step = amp.autocast(training_step(model, CrossEntropy(), SGD()), dtype="float16")
    reads = [d for d in step.report.decisions if "2.weight" in d.why]
    assert len(reads) >= 2 and {d.mode for d in reads} == {FULL}, "forward, and the gradient of what it multiplies"


@pytest.mark.parametrize("build", [relax.op.matmul, relax.op.add])
def test_a_literal_is_treated_alike_whoever_reads_it(build: Callable[..., relax.Expr]) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 2), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(build(x, relax.const(np.full((2, 2), 1e5, "float32"))))
        builder.emit_func_output(builder.emit(relax.op.matmul(y, y)))
    low = amp.autocast(builder.get(), dtype="float16")
    assert low.report.decisions[0].mode == FULL
    assert isinstance(low, tvm.IRModule) and low.report.out_of_range == {}
