"""Running a compiled model needs neither TVM's compiler nor torch, and its description survives a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import from_relax, vm
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


@I.ir_module
class Python:
    """Calls of functions that TVM registers in Python, and of one that a user did."""

    @R.function
    def places(x: R.Tensor((2, 3), "float32")):
        return R.nonzero(x)

    @R.function
    def different(x: R.Tensor((2, 3), "float32")):
        return R.unique(x, R.prim_value(1), R.prim_value(0), R.prim_value(0), R.prim_value(0))

    @R.function
    def mine(x: R.Tensor((2, 3), "float32")):
        return R.call_pure_packed("tests.nobody.has_it", x, ty_args=R.Tensor((2, 3), "float32"))


def _loaded(function: str, path: Path) -> subprocess.CompletedProcess[str]:
    """What a fresh process says, which loads one of `Python` and calls it with 0 to 5."""
    vm.compile(from_relax(tvm.IRModule({"main": Python[function].with_attr("global_symbol", "main")}))).export(path)
    code = (
        f"import sys, numpy as np; from autocast import runtime; run = runtime.load({str(path)!r});"
        "print(np.asarray(run(np.arange(6, dtype='float32').reshape(2, 3))).tolist(), 'tvm' in sys.modules)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_what_nonzero_finds_needs_no_python_of_tvm(tmp_path: Path) -> None:
    assert _loaded("places", tmp_path / "m").stdout == "[[0, 0, 1, 1, 1], [1, 2, 0, 1, 2]] False\n"


def test_functions_that_tvm_registers_in_python_are_found_where_a_model_is_loaded(tmp_path: Path) -> None:
    assert _loaded("different", tmp_path / "m").stdout == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0] True\n"


def test_a_function_that_is_not_registered_where_a_model_is_loaded_is_named(tmp_path: Path) -> None:
    tvm_ffi.register_global_func("tests.nobody.has_it", lambda x: x, override=True)
    assert "UnsupportedError: autocast.runtime: compiled code calls the function 'tests.nobody.has_it'" in (
        _loaded("mine", tmp_path / "m").stderr
    )


@pytest.mark.parametrize("model", [dense, steps, lambda: training_step(dense(), MSE(), SGD(momentum=0.9))])
def test_a_description_survives_json(model):
    program = vm.compile(model()).program
    again = Program.from_json(json.loads(json.dumps(program.to_json())))
    for name in ("signature", "state", "copies", "params", "kernels", "notes", "target", "constants", "outputs_vary"):
        assert getattr(again, name) == getattr(program, name), name
    assert json.dumps(again.to_json()) == json.dumps(program.to_json())
