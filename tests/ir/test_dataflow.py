"""Blocks show what is read after them, in branches too."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import from_relax, vm
from autocast.ir.dataflow import to_dataflow


@I.ir_module
class FieldInABranch:
    @R.function
    def main(x: R.Tensor((2, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((2, 4), "float32"):
        y = R.exp(x)
        pair = (y, x)
        if flag:
            z = R.sin(pair[0])
        else:
            z = R.cos(x)
        return z


@I.ir_module
class NestedFunctionInABranch:
    @R.function
    def main(x: R.Tensor((2, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((2, 4), "float32"):
        @R.function
        def inner(y: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
            r = R.sin(y)
            return r

        y = R.exp(x)
        pair = (y, x)
        if flag:
            z = inner(pair[0])
        else:
            z = R.cos(x)
        return z


def test_a_field_that_a_branch_reads_is_shown() -> None:
    relax.analysis.well_formed(to_dataflow(FieldInABranch))


@pytest.mark.parametrize("module", [FieldInABranch, NestedFunctionInABranch])
@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_reads_a_field_of_a_tuple(module, flag: bool) -> None:
    model = from_relax(module)
    relax.analysis.well_formed(model.mod)
    x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    expected = np.sin(np.exp(x)) if flag else np.cos(x)
    np.testing.assert_allclose(vm.compile(model)(x, np.array(flag)), expected, rtol=1e-6)
