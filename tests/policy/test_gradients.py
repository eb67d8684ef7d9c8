"""What a policy keeps in float32 in the forward pass stays so in the backward pass, whose calls are named after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import Model, amp, vm
from autocast.policy import Policy
from autocast.training import MSE, SGD, CrossEntropy, differentiate, training_step
from type_hints import low


@pytest.fixture(scope="module")
def step() -> Model:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 5 * 5, 5)
    )
    return training_step(autocast.from_torch(net.train(), (torch.rand(2, 1, 14, 14),)), CrossEntropy(), SGD())


def gradients(step: Model, forward: str, **fields: object) -> set[tuple[str, str, str]]:
    """(operator, lowest precision, level that decided) of all that compute gradients of the operator `forward`."""
    report = amp.autocast(step, policy=Policy(**{"preset": "mp4", **fields})).report
    found = {
        (d.operator.removeprefix("relax."), d.mode.split()[0], d.level)
        for d in report.decisions
        if d.forward == forward
    }
    assert found
    return found


@pytest.mark.parametrize("field", ["float32_ops", "unsupported_ops"])
def test_a_list_keeps_the_gradient_in_float32(step: Model, field: str) -> None:
    assert gradients(step, "relax.nn.max_pool2d", **{field: "nn.max_pool2d"}) == {
        ("grad.max_pool2d_backward", "float32", "operator list")
    }


def test_a_list_keeps_both_gradients_of_a_convolution_in_float32(step: Model) -> None:
    assert gradients(step, "relax.nn.conv2d", float32_ops="nn.conv2d") == {
        ("nn.conv2d_transpose", "float32", "operator list"),
        ("grad.conv2d_weight_backward", "float32", "operator list"),
    }


def test_a_condition_holds_for_the_gradient_of_the_calls_that_it_holds_for(step: Model) -> None:
    condition = (("nn.max_pool2d", "layout", ("NCHW",)),)
    assert gradients(step, "relax.nn.max_pool2d", conditional_float32_ops=condition) == {
        ("grad.max_pool2d_backward", "float32", "operator list")
    }


def test_a_name_reaches_the_gradients_of_its_call_and_of_no_other(step: Model) -> None:
    found = gradients(step, "relax.nn.conv2d", float32_names="0.weight")
    assert found == {
        ("grad.conv2d_weight_backward", "float32", "name pattern"),
        ("nn.conv2d_transpose", "bfloat16", "preset"),
        ("grad.conv2d_weight_backward", "bfloat16", "preset"),
    }


def test_a_region_reaches_the_gradients_of_its_calls(step: Model) -> None:
    found = gradients(step, "relax.nn.conv2d", float32_regions="0")
    assert ("grad.conv2d_weight_backward", "float32", "region") in found
    assert ("grad.conv2d_weight_backward", "bfloat16", "preset") in found


def test_a_list_that_names_the_gradient_itself_is_heard_first(step: Model) -> None:
    fields = {"float32_ops": "nn.conv2d", "low_ops": "nn.conv2d_transpose"}
    assert ("nn.conv2d_transpose", "bfloat16", "operator list") in gradients(step, "relax.nn.conv2d", **fields)


def test_a_call_that_a_name_makes_low_does_not_keep_its_gradient_in_float32(step: Model) -> None:
    fields = {"float32_ops": "nn.conv2d", "low_names": "*.weight"}
    found = gradients(step, "relax.nn.conv2d", **fields)
    assert {mode for _, mode, _ in found} == {"bfloat16"}


def test_a_name_that_a_gradient_shares_with_a_forward_call_says_nothing_of_that_call() -> None:
    @I.ir_module
    class Forward:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                first = R.matmul(x, w)
                lv = R.permute_dims(first)
                loss = R.sum(lv)
                R.output(loss)
            return loss

    main = Forward["main"]
    report = amp.autocast(
        tvm.IRModule({"main": differentiate(main, [main.params[1]], mod=Forward)}), policy="mp4, float32_names=w"
    ).report
    (moved,) = (d for d in report.decisions if d.forward == "relax.permute_dims")
    assert moved.mode == "bfloat16"


def test_a_report_says_of_what_a_call_is_the_gradient(step: Model) -> None:
    report = amp.autocast(step).report
    line = next(str(d) for d in report.decisions if d.forward == "relax.nn.relu")
    assert "in 1 = relax.grad.relu_backward, gradient of relax.nn.relu: " in line
    assert "gradient of" in str(report)
    assert not any(d.forward for d in report.decisions if d.operator == "relax.nn.cross_entropy")


class Largest(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).amax(1)


@pytest.fixture(scope="module")
def largest() -> Model:
    return training_step(autocast.from_torch(Largest(8, 8), (torch.rand(4, 8),)), MSE(), SGD())


def test_the_gradient_of_a_maximum_that_a_list_makes_low_compares_what_was_rounded_alike(largest: Model) -> None:
    low_step = amp.autocast(largest, policy="low_ops=max")
    executable = vm.compile(low_step, "torch:cpu", mode="eager")
    executable(torch.rand(4, 8), torch.rand(4), torch.tensor(0.1))
    assert all(np.isfinite(value.numpy()).all() for value in executable.state.values())


def test_a_name_and_a_hint_that_make_a_maximum_low_reach_the_comparison_in_its_gradient(largest: Model) -> None:
    (name,) = (d.binding for d in amp.autocast(largest).report.decisions if d.operator == "relax.max")
    named = gradients(largest, "relax.max", preset="rules", low_names=name)
    assert ("equal", "bfloat16", "name pattern") in named
    with amp.CustomTypeHint({"max": low(1)}):
        hinted = gradients(largest, "relax.max", preset="rules")
    assert ("equal", "bfloat16", "custom hint") in hinted


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.interpolate(x, size=(5, 11), mode="bilinear"),
        lambda x: nn.functional.adaptive_avg_pool2d(x, (3, 5)),
    ],
    ids=["resized", "pooled"],
)
def test_gradients_of_what_multiplies_nothing_are_no_low_products(function: Callable[..., torch.Tensor]) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x * self.scale)

    step = training_step(autocast.from_torch(Module(), (torch.randn(2, 3, 7, 6),)), MSE(), SGD())
    products = [d for d in amp.autocast(step).report.decisions if d.operator == "relax.matmul"]
    assert products and all(d.mode.startswith("float32") for d in products)
    assert "which multiplies nothing" in products[0].why
    low = [d for d in amp.autocast(step, policy="mp4").report.decisions if d.operator == "relax.matmul"]
    assert low and all(d.mode.startswith("bfloat16") for d in low)


class _Flattened(nn.Module):
    """Rows multiplied at once, as GPT-2 does: the import writes these calls anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.addmm(x.new_zeros(8), x.reshape(-1, 8), self.first).reshape(x.shape).exp()
        return torch.mm(hidden.reshape(-1, 8), self.second).reshape(*x.shape[:2], 3).log_softmax(2)


def test_a_name_is_that_of_one_call_after_an_import_and_in_a_training_step() -> None:
    model = autocast.from_torch(_Flattened().train(), (torch.randn(2, 4, 8),))
    for one in (model, training_step(model, MSE(), SGD(momentum=0.5))):
        names = [(decision.function, decision.binding) for decision in amp.autocast(one).report.decisions]
        assert len(names) > 4 and sorted(set(names)) == sorted(names)
