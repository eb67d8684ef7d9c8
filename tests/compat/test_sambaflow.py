"""SambaFlow's interface: each argument of the compiler becomes the field of a policy that it means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast
from autocast import amp
from autocast.compat import sambaflow
from autocast.errors import PolicyError


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ([], "default, fp32_params=False"),
        (["--graphamp-preset", "mp0"], "mp0, fp32_params=False"),
        (["--graphamp-preset", "mp1", "--tiling-accum", "bf16sr"], "mp1, accumulation=bf16sr, fp32_params=False"),
        (["--graphamp-preset=mp4", "--weight-grad-reduce=bf16sr"], "mp4, weight_gradients=bf16sr, fp32_params=False"),
        (["--graphamp-preset", "default", "--fp32-params"], "default"),
        (
            ["--enable-mixed-precision-ops", "gemm", "softmax", "--graphamp-preset", "mp4", "--fp32-params"],
            "mp4, mixed_ops=(gemm, softmax)",
        ),
    ],
)
def test_a_command_line_is_a_policy(arguments, policy):
    assert sambaflow.graphamp_policy(arguments) == amp.Policy.parse(policy)


@pytest.mark.parametrize(
    "arguments",
    [["--graphamp-preset", "mp2"], ["--tiling-accum", "bf16"], ["--enable-mixed-precision-ops"], ["--fp32"]],
)
def test_a_command_line_that_sambaflow_does_not_know_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        sambaflow.graphamp_policy(arguments)
    assert "compile: error" in capsys.readouterr().err


def test_arguments_that_are_none_of_the_legal_ones_are_errors():
    with pytest.raises(PolicyError, match="accumulation='bf16'"):
        sambaflow.graphamp_preset("mp1", tiling_accum="bf16")
    with pytest.raises(PolicyError, match="mixed_ops='conv'"):
        sambaflow.graphamp_preset("mp1", enable_mixed_precision_ops=["conv"])


def test_a_disabled_region_is_computed_in_the_dtypes_of_its_code_and_decorates_functions():
    class Model(nn.Module):
        @sambaflow.disable_graphamp()
        def head(self, x: torch.Tensor) -> torch.Tensor:
            """In the dtypes of the code."""
            return x @ x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """A product outside, one inside."""
            return self.head(x @ x)

    model = autocast.from_torch(Model(), (torch.ones(4, 4),))
    report = amp.autocast(model, policy=sambaflow.graphamp_preset("mp4")).report
    products = [decision for decision in report.decisions if decision.operator == "relax.matmul"]
    assert [(decision.level, decision.result) for decision in products] == [
        ("preset", "bfloat16"),
        ("region", "float32"),
    ]


def test_mixed_operators_are_mixed_in_the_whole_graph():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """A product and a softmax."""
            return (x @ x).softmax(-1)

    model = autocast.from_torch(Model(), (torch.ones(4, 4),))
    policy = sambaflow.graphamp_preset("mp4", enable_mixed_precision_ops=("gemm", "softmax"))
    found = {d.operator: (d.mode, d.result) for d in amp.autocast(model, policy=policy).report.decisions}
    assert found["relax.matmul"] == ("bfloat16", "float32")
    assert found["relax.nn.softmax"] == ("float32", "bfloat16")
