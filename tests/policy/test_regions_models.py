"""Regions in real architectures, and in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import amp, training
from autocast.frontend import from_torch
from autocast.ir import Place, place_of
from autocast.model.value import Model
from autocast.passes.casting.report import Decision
from autocast.policy import Region
from tests.architectures import ARCHITECTURES
from tests.frontend.helpers import relative_error

MP4 = amp.Policy(preset="mp4", out_dtype="float32")


def placed(result: Model) -> Iterator[tuple[Place, Decision]]:
    """Where each operator of main comes from, and what AutoCast decided."""
    for (_, var, _), decision in zip(result.report._plan.calls, result.report.decisions, strict=True):
        if decision.function == "main" and decision.mode != "as is" and decision.rule != "cast":
            yield place_of(var), decision


def imported(name: str, change: Callable[[nn.Module], None] = lambda module: None) -> tuple[Model, tuple, torch.Tensor]:
    """An architecture, its inputs, and what torch computes for them in float64."""
    architecture = ARCHITECTURES[name]()
    change(architecture.module)
    model = from_torch(architecture.module, architecture.args, example_kwargs=architecture.kwargs)
    with torch.no_grad():
        exact = architecture.module.double()(
            *(arg.double() if arg.is_floating_point() else arg for arg in architecture.args), **architecture.kwargs
        )
    return model, architecture.args, exact.logits


def test_berts_attention_is_computed_in_float32() -> None:
    def change(module: nn.Module) -> None:
        for layer in module.bert.encoder.layer:
            amp.disable_autocast(dtype="float32")(layer.attention.self)

    model, args, exact = imported("bert", change)
    result = amp.autocast(model, policy=MP4)
    attentions = [d for place, d in placed(result) if place.region == "float32"]
    assert {d.mode for d in attentions} == {"float32"}
    assert [d.operator for d in attentions].count("relax.nn.attention") == 1
    assert {d.mode for place, d in placed(result) if not place.region} == {"bfloat16"}
    assert relative_error(result(*args).double(), exact) < 0.03


def test_berts_softmax_alone_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "softmax", amp.disable_autocast(dtype="float32")(F.softmax))
    model, _, _ = imported("bert", lambda module: module.set_attn_implementation("eager"))
    in_float32 = [d.operator for _, d in placed(amp.autocast(model, policy=MP4)) if d.mode == "float32"]
    assert in_float32 == ["relax.nn.softmax"]


def test_gpt2s_head_is_computed_in_float32_by_name() -> None:
    model, args, exact = imported("gpt2")
    policy = amp.Policy(preset="mp4", float32_regions=("lm_head",), out_dtype="float32")
    result = amp.autocast(model, policy=policy)
    modes = {(place.module == "lm_head", decision.mode) for place, decision in placed(result)}
    assert modes == {(True, "float32"), (False, "bfloat16")}
    assert relative_error(result(*args).double(), exact) < 0.03


def test_resnets_stem_is_computed_in_float32_by_pattern() -> None:
    model, args, exact = imported("resnet")
    policy = amp.Policy(float32_regions=("resnet.embedder",), out_dtype="float32")
    result = amp.autocast(model, policy=policy)
    modes: dict[bool, set[str]] = {True: set(), False: set()}
    for place, decision in placed(result):
        if decision.operator == "relax.nn.conv2d":
            modes[place.module.startswith("resnet.embedder")].add(decision.mode)
    assert modes == {True: {"float32"}, False: {"bfloat16"}}
    assert relative_error(result(*args).double(), exact) < 0.03


def test_what_the_author_wrote_wins_over_patterns() -> None:
    module = nn.Sequential(amp.disable_autocast(dtype="float32")(nn.Linear(8, 8)), nn.Linear(8, 8))
    model = from_torch(module, (torch.randn(2, 8),))
    result = amp.autocast(model, policy=amp.Policy(low_regions=("*",)))
    assert [d.mode for _, d in placed(result) if d.operator == "relax.matmul"] == ["float32", "bfloat16"]


def test_a_region_computes_what_torch_computes_by_hand_in_its_dtypes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with amp.disable_autocast(dtype="bfloat16"):
                x = self.first(x)
            with amp.disable_autocast(dtype="float32"):
                return self.second(x)

    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 16)
    by_hand = F.linear(F.linear(x.bfloat16(), net.first.weight.bfloat16()).float(), net.second.weight)
    for preset in ("mp0", "rules", "mp4"):
        got = amp.autocast(from_torch(net, (x,)), policy=amp.Policy(preset=preset))(x)
        assert relative_error(got, by_hand.detach()) < 1e-4, preset


# -- training ----------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """Three layers, the second with a softmax in a region."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 16) to the same."""
        x = torch.tanh(self.layers[0](x))
        with self.region:
            x = F.softmax(self.layers[1](x), -1)
        return self.layers[2](x)


@cache
def _step(dtype: str, *recompute: str) -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(Classifier(amp.disable_autocast(dtype=dtype))).train()
    model = from_torch(module, (torch.randn(8, 16),))
    return training.training_step(model, training.CrossEntropy(), training.AdamW(), clip_norm=1.0, recompute=recompute)


@pytest.mark.parametrize(("dtype", "preset"), [("float32", "mp4"), ("float32", "rules"), ("bfloat16", "mp0")])
def test_backward_operators_are_in_the_dtype_of_their_region(dtype: str, preset: str) -> None:
    step = _step(dtype)
    rows = list(placed(amp.autocast(step, policy=amp.Policy(preset=preset))))
    inside = [d for place, d in rows if place.region == dtype and place.module]
    assert {d.mode for d in inside} == {dtype}
    backward = {d.operator for d in inside if "grad" in d.operator}
    assert backward == {"relax.grad.softmax_backward", "relax.grad.broadcast_backward"}
    assert [d.operator for d in inside].count("relax.matmul") == 3
    outside = {d.mode for place, d in rows if place.module == "0.layers.0" and d.operator == "relax.matmul"}
    assert outside == {"float32" if preset == "mp0" else "bfloat16"}


def test_no_preset_touches_the_optimizer() -> None:
    result = amp.autocast(_step("float32"), policy=amp.Policy(preset="mp4"))
    updates = [d for d in result.report.decisions if d.function != "main" and d.mode != "as is"]
    assert updates and {d.mode for d in updates} == {"float32"}


def test_recomputed_operators_are_in_their_region() -> None:
    step = _step("float32", "0")
    rows = placed(amp.autocast(step, policy=amp.Policy(preset="mp4")))
    again = {(d.operator, place.region, d.mode) for place, d in rows if "_again" in d.binding}
    assert ("relax.nn.softmax", "float32", "float32") in again
    assert ("relax.tanh", "", "bfloat16") in again


def test_a_loss_that_is_appended_in_a_region_is_in_it() -> None:
    model = from_torch(nn.Linear(16, 16).train(), (torch.randn(8, 16),))
    with amp.disable_autocast(dtype="float32"):
        step = training.training_step(model, training.CrossEntropy(), training.SGD())
    places = {place.region for place, d in placed(amp.autocast(step)) if "cross_entropy" in d.operator}
    assert places == {"float32"}


def test_a_step_with_a_region_trains_as_in_float32() -> None:
    x, labels = torch.randn(8, 16), torch.randint(0, 16, (8,))
    losses = {}
    for policy in (None, amp.Policy(preset="mp4")):
        step = _step("float32") if policy is None else amp.autocast(_step("float32"), policy=policy)
        losses[policy] = float(step(x, labels, torch.tensor(0.0)))
    exact, low = losses.values()
    assert abs(low - exact) < 0.02 * abs(exact)
