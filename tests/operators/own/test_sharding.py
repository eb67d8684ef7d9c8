"""Shares of tensors: types, what does not fit, and in one process the tensors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.errors import IllFormedModuleError, RankError
from autocast.operators.own import all_gather_start, reduce_scatter_start, share
from tests.type_hints.samples import tensor


@I.ir_module
class Shares:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((), "float32")):
        with R.dataflow():
            double = R.multiply(x, R.const(2.0, "float32"))
            rows = R.collective.reduce_scatter_start((double, y), count=1)
            means = R.collective.reduce_scatter_done(rows, sizes=[6, 1])
            of_x = R.collective.share(x, count=1)
            moved = R.subtract(of_x, means[0])
            again = R.collective.all_gather_start((moved, means[1]), count=1)
            whole = R.collective.all_gather_done(again, shapes=[[2, 3], []], dtype="float32")
            first = whole[0]
            second = whole[1]
            R.output(first, second)
        return (first, second)


def test_the_share_of_one_process_is_everything() -> None:
    x, y = np.arange(6, dtype="float32").reshape(2, 3), np.array(0.5, "float32")
    first, second = vm.compile(Shares)(x, y)
    np.testing.assert_array_equal(first, -x)
    np.testing.assert_array_equal(second, y)


def test_a_row_has_the_shares_of_all_tensors_and_zeros_fill_them() -> None:
    builder = relax.BlockBuilder()
    assert builder.normalize(share(tensor(5), count=2)).ty == relax.TensorType([3], "float32")
    rows = builder.normalize(reduce_scatter_start(relax.Tuple([tensor(5), tensor(2, 3)]), count=2))
    assert rows.ty == relax.TensorType([2, 4 * (3 + 3)], "uint8")
    assert builder.normalize(all_gather_start(relax.Tuple([tensor(3)]), count=2)).ty.shape[1] == 12


def test_a_step_of_more_processes_than_there_are_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            rows = builder.emit(reduce_scatter_start(relax.Tuple([x]), count=2))
            result = builder.emit_output(rows)
        builder.emit_func_output(result)
    with pytest.raises(RankError, match=r"of 2 processes with zero=1 runs in 1, expected 2: .* Make the Trainer"):
        vm.compile(builder.get())(np.zeros(4, "float32"))


def test_a_module_prints_as_a_script_that_parses_to_the_same() -> None:
    tvm.ir.assert_structural_equal(tvm.script.from_source(Shares.script()), Shares)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((tensor(2), tensor(2, dtype="bfloat16")), r"got tensors of \['bfloat16', 'float32'\], expected one dtype"),
        ((relax.Var("x", relax.TensorType(ndim=1, dtype="float32")),), "expected tensors whose sizes are known"),
    ],
)
def test_tensors_of_two_dtypes_or_of_sizes_that_nobody_knows_are_refused(
    parts: tuple[relax.Var, ...], message: str
) -> None:
    with pytest.raises(IllFormedModuleError, match=message):
        relax.BlockBuilder().normalize(reduce_scatter_start(relax.Tuple(parts), count=2))
