"""What AutoCast makes of regions: they decide before presets, and keep the precision that they ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from autocast import amp
from autocast.errors import PolicyError
from autocast.frontend import from_torch
from autocast.model.value import Model
from tests.frontend.helpers import Calls
from tests.policy.nested import Nested, X


def decisions(model: Model, policy: amp.Policy) -> dict[str, tuple[str, str, str]]:
    """(arguments, result, who decided) of each operator, by its short name."""
    report = amp.autocast(model, policy=policy).report
    return {d.operator.rpartition(".")[2]: (d.mode, d.result, d.level) for d in report.decisions}


@pytest.mark.parametrize("preset", ["rules", "mp1", "mp4", "pure", "default"])
def test_a_region_decides_before_every_preset(preset: str) -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset=preset))
    assert decided["exp"] == ("float32", "float32", "region")
    assert decided["tanh"] == ("bfloat16", "bfloat16", "region")
    assert decided["sin"] == ("float32", "float32", "region")
    assert decided["cos"] == ("float32", "float32", "region")
    assert decided["relu"][2] != "region"


def test_only_what_is_guarded_goes_low_under_a_guarded_policy() -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset="mp4", guarded=True))
    assert {name for name, (mode, _, _) in decided.items() if mode == "bfloat16"} == {"tanh", "sigmoid"}
    assert decided["relu"] == ("float32", "float32", "region")
    assert decided["sigmoid"] == ("bfloat16", "bfloat16", "preset")


def test_a_guard_is_as_if_it_were_not_there_under_other_policies() -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset="mp4"))
    assert decided["sigmoid"] == ("bfloat16", "bfloat16", "preset") == decided["relu"]


def test_the_authors_dtypes_are_left_alone() -> None:
    """SambaFlow's example: under mp1, matmul_1 has mixed precision and matmul_2 is bfloat16."""

    class Example(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            act_1 = F.relu(torch.matmul(a, b))
            with amp.disable_autocast():
                matmul_2 = torch.matmul(act_1.bfloat16(), c.bfloat16())
                return F.relu(matmul_2)

    model = amp.autocast(from_torch(Example(), (X, X.T, X[:4, :4])), policy=amp.Policy(preset="mp1"))
    rows = [(d.operator, d.mode, d.result, d.level) for d in model.report.decisions if "astype" not in d.operator]
    assert rows == [
        ("relax.matmul", "bfloat16", "float32", "preset"),
        ("relax.nn.relu", "float32", "float32", "preset"),
        ("relax.matmul", "bfloat16", "bfloat16", "region"),
        ("relax.nn.relu", "bfloat16", "bfloat16", "region"),
    ]
    assert model(X, X.T, X[:4, :4]).dtype == torch.bfloat16


def test_autocast_twice_is_autocast_once() -> None:
    policy = amp.Policy(preset="mp4")
    once = amp.autocast(from_torch(Nested(), (X,)), policy=policy)
    twice = amp.autocast(once, policy=policy)
    assert tvm_ffi.structural_equal(twice.mod, once.mod)


def test_a_region_of_another_16_bit_dtype_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"disable_autocast\(dtype='bfloat16'\), and the policy's dtype is 'float16'"):
        amp.autocast(from_torch(Nested(), (X,)), dtype="float16")


def test_float32_keeps_what_bfloat16_loses() -> None:
    """(x + 1000) - 1000 is a part of x in float32, and nothing of it once 1000 + x was stored in bfloat16."""

    def compute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x + 1000.0) @ w - (1000.0 * w.sum(0))

    def in_float32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with amp.disable_autocast(dtype="float32"):
            return compute(x, w)

    w, policy = torch.ones(8, 4), amp.Policy(preset="mp4", out_dtype="float32")
    expected = compute(X.double(), w.double()).float()
    errors = [
        float((amp.autocast(from_torch(Calls(function), (X, w)), policy=policy)(X, w) - expected).abs().max())
        for function in (in_float32, compute)
    ]
    assert errors[0] < 5e-3 < 0.5 < errors[1]


_PARTS = {"sin": torch.sin, "exp": torch.exp, "tanh": torch.tanh}
_TREES = st.recursive(
    st.sampled_from(sorted(_PARTS)),
    lambda inner: st.tuples(
        st.sampled_from([None, "float32", "bfloat16", "guard"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=8, deadline=None)
@given(st.lists(_TREES, min_size=1, max_size=3))
def test_however_regions_nest_each_operator_is_decided_by_the_innermost(trees: list) -> None:
    expected: list[tuple[str, str]] = []

    def walk(x: torch.Tensor, tree: Any, dtype: str) -> torch.Tensor:
        if isinstance(tree, str):
            expected.append((f"relax.{tree}", dtype))
            return _PARTS[tree](x)
        name, parts = tree
        with amp.fp16_guard() if name == "guard" else amp.disable_autocast(dtype=name):
            for part in parts:
                x = walk(x, part, {"guard": "bfloat16", None: "float32"}.get(name, name))
        return x

    def compute(x: torch.Tensor) -> torch.Tensor:
        expected.clear()
        for tree in trees:
            x = walk(x, tree, "bfloat16")
        return x

    model = amp.autocast(from_torch(Calls(compute), (X,)), policy=amp.Policy(preset="mp4"))
    assert [(d.operator, d.mode) for d in model.report.decisions] == expected


class _Low(nn.Sequential):
    """Layers in a region of low precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with amp.disable_autocast(dtype="bfloat16"):
            return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [(_Low, "default"), (nn.Sequential, "low_regions=*"), (nn.Sequential, "low_names=*.weight")],
    ids=["region", "regions", "names"],
)
def test_what_has_no_low_form_is_float32_among_what_has(kind: type[nn.Sequential], policy: str) -> None:
    module, x = kind(nn.Linear(8, 8), nn.GroupNorm(2, 8)).eval(), torch.rand(2, 8)
    model = amp.autocast(from_torch(module, (x,)), policy=policy)
    found = {d.operator.rpartition(".")[2]: (d.mode, d.why) for d in model.report.decisions}
    assert found["group_norm"][0] == "float32"
    assert "TVM refuses it in bfloat16" in found["group_norm"][1]
    assert found["matmul"][0] == "bfloat16"
    torch.testing.assert_close(model(x), module(x), rtol=2e-2, atol=2e-2)
