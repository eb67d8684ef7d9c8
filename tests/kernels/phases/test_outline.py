"""Branches become functions, whatever they read."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import vm
from autocast.ir import all_bindings
from autocast.kernels.phases.outline import outline_branches


@I.ir_module
class Sizes:
    """The first branch names the dimensions of a tensor that it does not read."""

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), c: R.Tensor((), "bool"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        n = T.int64()
        m = T.int64()
        if c:
            s = R.shape_to_tensor(R.shape([n, m]))
            t = R.sum(R.astype(s, "float32"))
            r = R.add(y, t)
        else:
            r = R.negative(y)
        return r


def test_a_branch_is_given_the_dimensions_that_none_of_its_operands_has() -> None:
    mod = outline_branches(Sizes)
    choice = next(b.value for b in all_bindings(mod["main"].body) if isinstance(b.value, relax.If))
    values = [branch.blocks[0].bindings[0].value for branch in (choice.true_branch, choice.false_branch)]
    assert [[str(operand.ty) for operand in call.args] for call in values] == [
        ['R.Tensor((4,), dtype="float32")', "R.Shape([m, n])"],
        ['R.Tensor((4,), dtype="float32")'],
    ]


@pytest.mark.parametrize("condition", [True, False])
def test_it_computes_with_them(condition: bool) -> None:
    y = np.arange(4, dtype="float32")
    result = vm.compile(autocast.from_relax(Sizes))(np.ones((3, 5), "float32"), np.array(condition), y)
    np.testing.assert_array_equal(np.asarray(result), y + 8 if condition else -y)
