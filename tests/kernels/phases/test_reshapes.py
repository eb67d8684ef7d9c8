"""Reshapes to run-time sizes are checked where the number of elements may change, and left alone where it cannot."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

from autocast.ir import all_bindings
from autocast.kernels.phases.reshapes import check_reshapes

_N, _M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def _reshape(old: list, new: list) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(old, "float32"))
    with builder.function("main", [x, relax.Var("sizes", relax.ShapeType([_N, _M]))]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.reshape(x, relax.ShapeExpr(new)))
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize(
    ("old", "new"),
    [([2, 6], [3, 4]), ([_N, 6], [_N * 2, 3]), ([_N, _M, 8], [_N * _M, 8]), ([_N, _M * 4], [_M, 2, _N, 2])],
    ids=str,
)
def test_where_the_numbers_are_the_same_nothing_is_checked(old: list, new: list) -> None:
    mod = _reshape(old, new)
    assert check_reshapes(mod).same_as(mod)


@pytest.mark.parametrize(("old", "new"), [([2, 6], [_N, 4]), ([_N, 6], [_M, 3]), ([_N], [_N // 2, 2])], ids=str)
def test_where_they_may_differ_they_are_compared(old: list, new: list) -> None:
    checked = check_reshapes(_reshape(old, new))
    relax.analysis.well_formed(checked)
    casts = [b for b in all_bindings(checked["main"].body) if isinstance(b, relax.MatchCast)]
    assert [len(cast.ty.values) for cast in casts] == [1]
