"""What the machine code of a kernel checks of its arguments."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from autocast.kernels.fallback.schedule import EXISTING
from autocast.kernels.objects import machine_code
from autocast.kernels.targets.cpu.instruction_sets import detect_target


@T.prim_func(s_tir=True)
def copy(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
    T.func_attr({"global_symbol": "copy"})
    for i, j in T.grid(4, 6):
        with T.sblock("copy"):
            row, column = T.axis.remap("SS", [i, j])
            y[row, column] = x[row, column]


def _messages(function: tirx.PrimFunc) -> str:
    """LLVM's text of a function: what it says where it refuses arguments is in it."""
    code, _ = machine_code(tvm.IRModule({"copy": function}), detect_target(), lambda _: None)
    return code.inspect_source("ll")


def test_a_kernel_of_our_own_checks_the_sizes_of_its_arguments() -> None:
    text = _messages(copy)
    assert "x.shape[1]" in text and "y.shape[0]" in text
    for other in (".dtype", ".strides", ".device_type", "NULL"):
        assert other not in text


@pytest.mark.parametrize("part", ["x.shape[1]", ".dtype", ".strides", ".device_type", "NULL"])
def test_a_kernel_that_came_with_a_module_checks_everything(part: str) -> None:
    assert part in _messages(copy.with_attr(EXISTING, True))
