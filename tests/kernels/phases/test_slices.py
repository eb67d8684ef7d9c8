"""Slices of run-time sizes are those of numpy: of none fewer than 0 elements, and none begins before the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import vm
from autocast.kernels.phases.slices import keep_sizes_of_slices
from tests.kernels.modules import module

op = relax.op


#: Where slices begin and end, and their steps.
_KNOWN = [
    (3, -3, 1),
    (-5, -1, 1),
    (-5, 100, 1),
    (5, 3, 1),
    (2, -2, 3),
    (-2, -7, -1),
    (-1, -100, -1),
    (4, 1, -2),
    (1, 4, -1),
]


@pytest.mark.parametrize("width", [1, 4], ids=["of one column", "of four"])
@pytest.mark.parametrize("transposed", [False, True], ids=["as it is", "transposed"])
def test_slices_of_a_run_time_axis_by_known_places(transposed: bool, width: int) -> None:
    def body(x: Any) -> Any:
        parts = [op.strided_slice(x, [0], [begin], [end], [step]) for begin, end, step in _KNOWN]
        return relax.Tuple([op.permute_dims(part) if transposed else op.add(part, part) for part in parts])

    executable = vm.compile(module(body, (("n", width), "float32")))
    for rows in range(9):
        x = np.arange(width * rows, dtype="float32").reshape(rows, width)
        for (begin, end, step), got in zip(_KNOWN, executable(x), strict=True):
            part = x[begin:end:step]
            expected = part.T if transposed else part + part
            np.testing.assert_array_equal(got, expected, err_msg=f"{begin}:{end}:{step} of {rows}")


def _by_run_time_places(step: int) -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float32"), places: R.Tensor((2,), "int64")):
            b = T.int64()
            e = T.int64()
            _ = R.match_cast(R.tensor_to_shape(places), R.Shape([b, e]))
            y = R.strided_slice(x, (R.prim_value(0),), (b,), (e,), (R.prim_value(step),))
            z = R.add(y, y)
            return z

    return Module


@pytest.mark.parametrize("step", [1, 2, -1])
def test_a_slice_between_places_that_data_say(step: int) -> None:
    executable = vm.compile(_by_run_time_places(step))
    x = np.arange(4, dtype="float32")
    for begin in range(6):
        for end in range(6):
            got = executable(x, np.array([begin, end]))
            np.testing.assert_array_equal(got, 2 * x[begin:end:step], err_msg=f"{begin}:{end}:{step}")


@pytest.mark.parametrize(
    ("begin", "end", "step"), [(3, 1, 1), (-1, 0, 1), (2, 2, 1), (9, 12, 1), (1, 3, -1), (-1, -1, -2)]
)
def test_a_slice_of_known_size_that_ends_before_it_begins(begin: int, end: int, step: int) -> None:
    def body(x: Any) -> Any:
        part = op.strided_slice(x, [1], [begin], [end], [step])
        return op.concat([op.add(part, part), x], 1)

    x = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(vm.compile(module(body, ((3, 4), "float32")))(x), x)


def test_what_is_not_below_0_and_what_is_said_to_be_within_stays() -> None:
    def body(x: Any) -> Any:
        within = op.strided_slice(x, [0], [3], [5], assume_inbound=True)
        first = op.strided_slice(x, [0], [0], [3])
        return op.concat([op.sum(within, 0), op.sum(first, 0)])

    mod = module(body, (("n", 4), "float32"))
    tvm.ir.assert_structural_equal(keep_sizes_of_slices(mod), mod)
