"""Conversions to float32 that an author wrote where the tensor is float32 already: preset `default` ends at them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm_ffi
from torch import nn

import autocast
from autocast import amp
from autocast.frontend import from_torch
from autocast.model import Model
from autocast.training import MSE, SGD, training_step

X = torch.rand(4, 4)


class Written(nn.Module):
    """A product, what `convert` makes of it, and a product of that; beside it, one of what was not converted."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.convert = convert
        self.first, self.then = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """After a conversion, and before it."""
        h = self.first(x)
        beside = h.tanh()
        return self.then(self.convert(h).relu()), beside


def imported(convert: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    torch.manual_seed(0)
    return from_torch(Written(convert), (X,))


def modes(model: Model, policy: str = "default") -> dict[str, str]:
    """The precisions of each operator's calls, in order."""
    found: dict[str, str] = {}
    for decision in amp.autocast(model, policy=policy).report.decisions:
        name = decision.operator.rpartition(".")[2]
        found[name] = f"{found[name]} {decision.mode}" if name in found else decision.mode
    return found


@pytest.mark.parametrize(
    "convert",
    [
        lambda h: h.float(),
        lambda h: h.to(torch.float32),
        lambda h: h.to(dtype=torch.float32),
        lambda h: h.to("cpu", torch.float32),
        lambda h: h.to(X),
        lambda h: h.type(torch.float32),
        lambda h: h.type_as(X),
        lambda h: h.float().float().view(2, 8).view(4, 4),
    ],
)
def test_default_is_float32_after_a_conversion_and_low_beside_it(convert):
    found = modes(imported(convert))
    assert found["matmul"] == "bfloat16 float32"
    assert (found["relu"], found["tanh"]) == ("float32", "bfloat16")


@pytest.mark.parametrize("convert", [lambda h: h, lambda h: h.to("cpu"), lambda h: h.cpu()])
def test_what_is_no_conversion_to_float32_changes_nothing(convert):
    assert modes(imported(convert))["matmul"] == "bfloat16 bfloat16"


def test_a_weight_that_is_read_after_a_conversion_is_not_rounded():
    model = imported(lambda h: h.float())
    converted = amp.autocast(model, policy="default")
    assert {cast.tensor for cast in converted.report.inserted if cast.target == "bfloat16"} == {"x", "first_weight"}


@pytest.mark.parametrize("policy", ["mp0", "mp1", "mp4", "rules", "pure"])
def test_where_nothing_uses_them_conversions_leave_no_trace(policy):
    plain, converted = (imported(convert) for convert in (lambda h: h, lambda h: h.float()))
    assert tvm_ffi.structural_equal(plain.mod, converted.mod)
    results = [amp.autocast(model, policy=policy).mod for model in (plain, converted)]
    assert tvm_ffi.structural_equal(*results)


def test_the_same_call_before_and_after_a_conversion_is_two():
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """The same function of a tensor and of its conversion."""
            h = x @ x
            before = h.exp()
            return before, h.float().exp()

    assert modes(from_torch(Twice(), (X,)))["exp"] == "bfloat16 float32"


def test_conversions_survive_exporting_an_exported_program_again():
    program = torch.export.export(Written(lambda h: h.float()), (X,), strict=False)
    assert modes(from_torch(program.module(), (X,)))["matmul"] == "bfloat16 float32"


class RMSNorm(nn.Module):
    """As Llama writes it, between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.before, self.after = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm is computed in float32, and goes back to the dtype that it was given."""
        x = self.before(x)
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.after(self.weight * normed.to(x.dtype))


def test_a_norm_that_converts_is_one_operator_and_in_float32():
    found = modes(from_torch(RMSNorm(), (X,)))
    assert "rsqrt" not in found
    assert (found["rms_norm"], found["matmul"]) == ("float32", "bfloat16 float32")


def test_a_norm_that_goes_back_to_bfloat16_ends_its_conversion():
    found = modes(from_torch(RMSNorm().bfloat16(), (X.bfloat16(),)))
    assert found["matmul"] == "bfloat16 bfloat16"
    assert found["rsqrt"] == "float32"


def test_gradients_are_in_the_precision_of_their_forward_calls():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.then = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Low, then float32."""
            return self.then(self.first(x).tanh().float())

    step = training_step(autocast.from_torch(Head().train(), (X,)), MSE(), SGD())
    decisions = amp.autocast(step, policy="default").report.decisions
    products = [d.mode for d in decisions if d.operator == "relax.matmul"]
    assert products == ["bfloat16", "float32", "float32", "float32", "bfloat16"]
    assert [d.mode for d in decisions if d.operator == "relax.grad.tanh_backward"] == ["bfloat16"]
