"""SambaFlow's interface: each argument of the compiler becomes the field of a policy that it means."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import autocast
from autocast import amp
from autocast.compat import sambaflow
from autocast.compat.sambaflow import samba
from autocast.compat.sambaflow.samba.utils.argparser import main
from autocast.errors import PolicyError
from autocast.training import MSE, SGD


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
        @samba.session.disable_graphamp()
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


FILE = """
import torch
from torch import nn
import autocast.compat.sambaflow.samba as samba

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        hidden = torch.tanh(self.up(x))
        with samba.session.disable_graphamp():
            hidden = hidden * 2
        return self.down(hidden).softmax(-1)

mymodel = Gated()
samba.utils.argparser.main(mymodel, (torch.zeros(4, 8),))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The file of a script."""
    (tmp_path / "mymodel.py").write_text(FILE)
    return str(tmp_path / "mymodel.py")


def test_a_file_with_a_module_and_inputs_is_compiled_from_the_command_line(path, capsys, monkeypatch):
    arguments = "compile --graphamp-preset mp1 --tiling-accum bf16sr --weight-grad-reduce bf16sr --fp32-params"
    monkeypatch.setattr(sys, "argv", [path, *arguments.split(), "--enable-mixed-precision-ops", "gemm", "softmax"])
    runpy.run_path(path, run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('Policy(preset="mp1", mixed_ops=("gemm", "softmax")')
    assert any("relax.matmul: bfloat16 -> float32 (widening by operator list" in line for line in lines)
    assert any("relax.multiply: float32 -> float32 (leave by region" in line for line in lines)
    assert lines[-1].startswith("compiled in ")


def test_a_command_that_is_not_understood_is_refused_with_status_2(path):
    command = [sys.executable, path, "compile", "--graphamp-preset", "mp2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'mp2'" in done.stderr


def test_with_a_loss_and_an_optimizer_the_training_step_is_compiled(capsys):
    given = {"loss": MSE(), "optimizer": SGD(), "argv": ["compile", "--graphamp-preset", "mp4", "--fp32-params"]}
    main(nn.Linear(4, 4).bfloat16(), (torch.ones(2, 4, dtype=torch.bfloat16),), **given)
    said = capsys.readouterr().out
    assert "gradient of relax.matmul" in said
    assert "compiled in" in said
    with pytest.raises(SystemExit):
        main(nn.Linear(4, 4), (torch.ones(2, 4),), loss=MSE(), argv=["compile"])


def test_what_cannot_be_compiled_is_said_with_status_1(capsys):
    with pytest.raises(SystemExit) as ended:
        main(nn.Linear(4, 4), (torch.ones(2, 3),), argv=["compile"])
    assert ended.value.code == 1
    assert "error: ImportModelError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "name", "nearest"),
    [(samba, "sesion", "session"), (samba.session, "compile", "argparser.main"), (sambaflow, "graphamp", "graphamp_p")],
)
def test_what_is_not_there_is_named_with_the_nearest(place, name, nearest):
    with pytest.raises(AttributeError, match=nearest):
        getattr(place, name)
