"""What is returned is what the module declares: looked at once for inputs of new sizes, and then no more."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax, vm
from autocast.errors import CompileError
from autocast.runtime import load
from autocast.runtime.executable import Executable
from autocast.runtime.results import Output


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.reshape(x, R.shape([n * 4]))
            s = R.sum(x)
            gv = (y, (s, x))
            R.output(gv)
        return gv


def _x(rows: int) -> np.ndarray:
    return np.arange(rows * 4, dtype="float32").reshape(rows, 4)


def test_a_signature_says_what_is_returned() -> None:
    signature = vm.compile(Module).signature
    assert signature.outputs == (
        Output("float32", (("*", "n", 4),)),
        (Output("float32", ()), Output("float32", ("n", 4))),
    )
    assert str(signature.outputs[0]) == "float32[n * 4]"


def test_what_a_file_says_is_the_same(tmp_path: Any) -> None:
    executable = vm.compile(Module)
    loaded = load(executable.export(tmp_path / "model"))
    assert loaded.signature == executable.signature
    np.testing.assert_array_equal(loaded(_x(3))[0], _x(3).reshape(-1))


def _returns(change: Any, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """An executable whose results somebody changes."""
    run = Executable.run
    monkeypatch.setattr(Executable, "run", lambda self, arguments: change(run(self, arguments)))
    return vm.compile(Module)


def _field(dtype: str, shape: tuple[int, ...]) -> Any:
    return lambda outputs: (tvm.runtime.tensor(np.zeros(shape, dtype)), outputs[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _field("float64", (12,)),
            r"main: the result's field 0 is float64\[12\], .* declares float32\[n \* 4\] with n = 3",
        ),
        (_field("float32", (11,)), r"the result's field 0 is float32\[11\]"),
        (_field("float32", (12, 1)), r"the result's field 0 is float32\[12, 1\]"),
        (
            lambda outputs: (outputs[0], (outputs[1][1], outputs[1][1])),
            r"the result's field 1's field 0 is float32\[3, 4\]",
        ),
        (
            lambda outputs: (outputs[0], outputs[0]),
            r"the result's field 1 is float32\[12\], .* \(float32\[\], float32\[n, 4\]",
        ),
        (lambda outputs: outputs[0], r"the result is float32\[12\]"),
    ],
)
def test_another_result_is_an_error(change: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=message):
        _returns(change, monkeypatch)(_x(3))


def test_other_sizes_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    module = sys.modules["autocast.runtime.executable"]
    monkeypatch.setattr(module, "check_outputs", lambda *arguments: looked.append(arguments[2]))
    executable = vm.compile(Module)
    for rows in (3, 3, 4, 4):
        executable(_x(rows))
    assert looked == [{"n": 3}, {"n": 4}]


def test_a_slice_of_nothing_is_what_its_formula_says_or_more() -> None:
    @I.ir_module
    class Rest:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n - 5",), "float32"):
            y = R.strided_slice(x, axes=[0], begin=[5], end=[9223372036854775807])
            return y

    executable = vm.compile(Rest)
    assert [executable(np.zeros(n, "float32")).shape for n in (7, 5, 3)] == [(2,), (0,), (0,)]


def test_a_size_that_main_promises_is_looked_at() -> None:
    @I.ir_module
    class Promise:
        @R.function
        def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")) -> R.Tensor(("n",), "float32"):
            z = R.exp(y)
            return z

    executable = vm.compile(Promise)
    assert executable(np.zeros(2, "float32"), np.zeros(2, "float32")).shape == (2,)


def test_torch_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = vm.compile(from_relax(Module), device="torch:cpu", mode="eager")
    assert executable(torch.from_numpy(_x(3)))[0].shape == (12,)
    monkeypatch.setattr(
        executable, "run", lambda arguments: (arguments[0].double().reshape(-1), (arguments[0].sum(), arguments[0]))
    )
    with pytest.raises(CompileError, match=r"field 0 is float64\[12\]"):
        executable(torch.from_numpy(_x(3)))
