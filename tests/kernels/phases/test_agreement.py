"""Operands whose sizes may not fit each other are compared at run time; those that must are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from autocast import from_relax, vm
from autocast.errors import InputError
from autocast.ir import all_bindings
from autocast.kernels.phases.agreement import check_agreement

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
    assert check_agreement(mod).same_as(mod)


@pytest.mark.parametrize(("old", "new"), [([2, 6], [_N, 4]), ([_N, 6], [_M, 3]), ([_N], [_N // 2, 2])], ids=str)
def test_where_they_may_differ_they_are_compared(old: list, new: list) -> None:
    checked = check_agreement(_reshape(old, new))
    relax.analysis.well_formed(checked)
    casts = [b for b in all_bindings(checked["main"].body) if isinstance(b, relax.MatchCast)]
    assert [len(cast.ty.values) for cast in casts] == [3]


def _indices(like: relax.Expr) -> relax.Expr:
    return op.astype(op.zeros_like(like), "int64")


#: A call of two tensors, their types, sizes that fit, sizes that do not, and what is said of these.
CALLS: dict[str, tuple[Callable, list, list, list, str]] = {
    "reshape": (
        lambda x, y: op.add(op.reshape(op.exp(x), y.ty.shape), y),
        [(_N, 2), (_M,)], [(3, 2), (6,)], [(3, 2), (8,)], r"needs m to be n \* 2; it is 2 more",
    ),
    "broadcast_to": (
        lambda x, y: op.add(op.broadcast_to(x, relax.ShapeExpr([2, *y.ty.shape])), y),
        [(_N,), (_M,)], [(3,), (3,)], [(3,), (5,)], "needs m to be n; it is 2 more",
    ),
    "matmul": (op.matmul, [(3, _N), (_M, 5)], [(3, 4), (4, 5)], [(3, 4), (6, 5)], "needs n to be m; it is 2 less"),
    "a transposed weight": (
        lambda x, y: op.matmul(x, op.permute_dims(y)),
        [(3, _N), (5, _M)], [(3, 4), (5, 4)], [(3, 4), (5, 2)], "needs n to be m; it is 2 more",
    ),
    "conv2d": (
        lambda x, y: op.nn.conv2d(x, y, groups=2),
        [(1, _N, 6, 6), (4, _M, 3, 3)], [(1, 8, 6, 6), (4, 4, 3, 3)], [(1, 8, 6, 6), (4, 5, 3, 3)],
        r"needs n to be m \* 2; it is 2 less",
    ),
    "conv1d_transpose": (
        op.nn.conv1d_transpose,
        [(1, _N, 6), (_M, 2, 3)], [(1, 3, 6), (3, 2, 3)], [(1, 3, 6), (4, 2, 3)], "needs n to be m; it is 1 less",
    ),
    "group_norm": (
        lambda x, y: op.nn.group_norm(x, y, y, 2, 1, [2]),
        [(2, _N, 5), (_M,)], [(2, 4, 5), (4,)], [(2, 4, 5), (6,)], "needs n to be m; it is 2 less",
    ),
    "keys and values": (
        lambda x, y: op.nn.attention(x, x, y),
        [(1, _N, 2, 8), (1, _M, 2, 8)], [(1, 4, 2, 8), (1, 4, 2, 8)], [(1, 4, 2, 8), (1, 3, 2, 8)],
        "needs n to be m; it is 1 more",
    ),
    "a bias of attention": (
        lambda x, y: op.nn.attention(x, x, x, bias=y),
        [(1, _N, 2, 8), (1, 1, 4, _M)], [(1, 4, 2, 8), (1, 1, 4, 4)], [(1, 4, 2, 8), (1, 1, 4, 3)],
        "needs n to be m; it is 1 more",
    ),
    "gather_nd": (
        lambda x, y: op.gather_nd(x, _indices(y), batch_dims=1),
        [(_N, 4), (_M, 1)], [(2, 4), (2, 1)], [(2, 4), (5, 1)], "needs n to be m; it is 3 less",
    ),
    "cross_entropy_with_logits": (
        op.nn.cross_entropy_with_logits,
        [(_N, 7), (_M, 7)], [(2, 7), (2, 7)], [(2, 7), (3, 7)], "needs n to be m; it is 1 less",
    ),
    "nll_loss": (
        lambda x, y: op.nn.nll_loss(x, _indices(y)),
        [(_N, 7), (_M,)], [(2, 7), (2,)], [(2, 7), (3,)], "needs n to be m; it is 1 less",
    ),
    "einsum": (
        lambda x, y: op.einsum([x, y], "ij,jk->ik"),
        [(3, _N), (_M, 5)], [(3, 4), (4, 5)], [(3, 4), (6, 5)], "needs m to be n; it is 2 more",
    ),
    "gather_elements": (
        lambda x, y: op.gather_elements(x, _indices(y), axis=0),
        [(3, _N), (2, _M)], [(3, 4), (2, 2)], [(3, 4), (2, 7)], "needs m to be at most n; it is 3 more",
    ),
    "scatter_elements": (
        lambda x, y: op.scatter_elements(x, _indices(y), y, axis=0),
        [(3, _N), (1, _M)], [(3, 4), (1, 2)], [(3, 4), (1, 7)], "needs m to be at most n; it is 3 more",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_operands_that_do_not_fit_are_an_error_and_others_are_computed(name: str) -> None:
    call, types, fit, unfit, said = CALLS[name]
    executable = vm.compile(from_relax(_called(call, types)))
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal(shape).astype("float32") for shape in fit]
    expected = vm.compile(from_relax(_called(call, fit)))(*tensors)
    np.testing.assert_allclose(executable(*tensors), expected, rtol=1e-5)
    with pytest.raises(InputError, match=said):
        executable(*(np.zeros(shape, "float32") for shape in unfit))


def _called(call: Callable, types: list) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    values = [relax.Var(name, relax.TensorType(type, "float32")) for name, type in zip("xy", types, strict=True)]
    with builder.function("main", values):
        with builder.dataflow():
            y = builder.emit_output(call(*values))
        builder.emit_func_output(y)
    return builder.get()
