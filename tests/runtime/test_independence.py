"""Running a compiled model needs neither TVM's compiler nor torch, and its description survives a file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from autocast import vm
from autocast.runtime.program import Program
from autocast.training import MSE, SGD, training_step
from tests.vm.modules import dense, steps


def test_importing_the_runtime_imports_neither_the_compiler_nor_torch():
    code = "import sys, autocast.runtime; print(*{'tvm', 'torch', 'scipy', 'rich', 'type_hints'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_torch_can_be_imported_after_the_runtime_and_its_tensors_are_taken():
    code = (
        "import autocast.runtime, torch; from autocast.runtime.tensors import from_tensor, to_tensor;"
        "x = torch.arange(6.0).reshape(2, 3).bfloat16(); print(from_tensor(to_tensor(x), 'torch').sum().item())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "15.0"


@pytest.mark.parametrize("model", [dense, steps, lambda: training_step(dense(), MSE(), SGD(momentum=0.9))])
def test_a_description_survives_json(model):
    program = vm.compile(model()).program
    again = Program.from_json(json.loads(json.dumps(program.to_json())))
    for name in ("signature", "state", "copies", "params", "kernels", "notes", "target", "constants", "outputs_vary"):
        assert getattr(again, name) == getattr(program, name), name
    assert json.dumps(again.to_json()) == json.dumps(program.to_json())
