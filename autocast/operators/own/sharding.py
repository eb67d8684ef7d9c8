"""Shares of gradients and parameters, where the state of the optimizer is divided among the processes of a training.

    rows: (2, 9224) uint8 = R.collective.reduce_scatter_start((w_grad, b_grad), count=2)
    ... the rest of the backward pass ...
    shares: ((1153,), (1,)) = R.collective.reduce_scatter_done(rows, sizes=[1153, 1], dtype="float32")
    w_share = R.collective.share(w, count=2)
    ... the updates of shares ...
    rows = R.collective.all_gather_start((w_share_new, b_share_new), count=2)
    whole = R.collective.all_gather_done(rows, shapes=[[3, 768], [2]], dtype="float32")

A share is ceil(n / count) elements of a tensor as one row: the first ones for rank 0, and so on, then zeros.
`autocast.runtime.sharding` is what they call; `autocast.training.parallel.zero` places them.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020 (stage 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax

from autocast.errors import IllFormedModuleError
from autocast.ir.views import static_shape
from autocast.operators.operator import Expanded, Expansion, define
from autocast.runtime import sharding


def _elements(type: tvm.ir.Type, name: str) -> int:
    shape = static_shape(relax.Var("part", type))
    if shape is None:
        raise IllFormedModuleError(f"relax.collective.{name}: got {type}, expected tensors whose sizes are known")
    return math.prod(shape)


def _rows(call: relax.Call, name: str, count: int, *, are_shares: bool) -> tvm.ir.Type:
    fields = list(call.args[0].ty.fields)
    dtypes = {str(field.dtype) for field in fields}
    if len(dtypes) != 1:
        raise IllFormedModuleError(f"relax.collective.{name}: got tensors of {sorted(dtypes)}, expected one dtype")
    sizes = [_elements(field, name) for field in fields]
    row = sum(sizes if are_shares else (sharding.share_size(size, count) for size in sizes))
    return relax.TensorType([count, row * tvm.DataType(dtypes.pop()).itemsize], "uint8")


def _count(call: relax.Call) -> int:
    return int(call.attrs["count"])


def _scatter_rows(call: relax.Call) -> tvm.ir.Type:
    return _rows(call, "reduce_scatter_start", _count(call), are_shares=False)


def _gather_rows(call: relax.Call) -> tvm.ir.Type:
    return _rows(call, "all_gather_start", _count(call), are_shares=True)


def _shares(call: relax.Call) -> tvm.ir.Type:
    return tvm.ir.TupleType([relax.TensorType([int(size)], "float32") for size in call.attrs["sizes"]])


def _whole(call: relax.Call) -> tvm.ir.Type:
    shapes = [[int(size) for size in shape] for shape in call.attrs["shapes"]]
    return tvm.ir.TupleType([relax.TensorType(shape, str(call.attrs["dtype"])) for shape in shapes])


def _share(call: relax.Call) -> tvm.ir.Type:
    ty = call.args[0].ty
    return relax.TensorType([sharding.share_size(_elements(ty, "share"), _count(call))], str(ty.dtype))


def _packed(function: str, operands: Sequence[relax.Expr], result: tvm.ir.Type) -> relax.Call:
    types = list(result.fields) if isinstance(result, tvm.ir.TupleType) else [result]
    out = types[0] if len(types) == 1 else types
    return relax.op.call_dps_packed(function, relax.Tuple(list(operands)), out_ty=out)


def _start(function: str, result: tvm.ir.Type, e: Expansion) -> relax.Expr:
    (parts,) = e.operands
    fields = [e.emit(relax.TupleGetItem(parts, i)) for i in range(len(parts.ty.fields))]
    return _packed(function, fields, result)


def _done(function: str, result: tvm.ir.Type, e: Expansion) -> Expanded:
    whole = e.emit(_packed(function, e.operands, result))
    return [whole] if len(result.fields) == 1 else [relax.TupleGetItem(whole, i) for i in range(len(result.fields))]


#: `reduce_scatter_start((x, y), count=2)`: a row for each rank, of its shares of the tensors.
reduce_scatter_start = define(
    "relax.collective.reduce_scatter_start",
    "tensors*",
    result=_scatter_rows,
    expand=lambda e: _start(sharding.SCATTER_START, _scatter_rows(e.call), e),
    summary="begins to send each rank its shares of tensors, of which it will have the means over all ranks",
)

#: `reduce_scatter_done(rows, sizes=[3, 4])`: the means of this rank's shares, float32.
reduce_scatter_done = define(
    "relax.collective.reduce_scatter_done",
    "rows",
    result=_shares,
    expand=lambda e: _done(sharding.SCATTER_DONE, _shares(e.call), e),
    summary="waits for what reduce_scatter_start began; the means over ranks of this rank's shares",
)

#: `share(x, count=2)`: this rank's share of a tensor that all have.
share = define(
    "relax.collective.share",
    "x",
    result=_share,
    expand=lambda e: _packed(sharding.SHARE, e.operands, _share(e.call)),
    summary="this rank's share of a tensor that all ranks have",
)

#: `all_gather_start((x, y), count=2)`: a row for each rank, with its shares.
all_gather_start = define(
    "relax.collective.all_gather_start",
    "shares*",
    result=_gather_rows,
    expand=lambda e: _start(sharding.GATHER_START, _gather_rows(e.call), e),
    summary="begins to send this rank's shares to all ranks",
)

#: `all_gather_done(rows, shapes=[[2, 3], [4]], dtype="float32")`: whole tensors.
all_gather_done = define(
    "relax.collective.all_gather_done",
    "rows",
    result=_whole,
    expand=lambda e: _done(sharding.GATHER_DONE, _whole(e.call), e),
    summary="waits for the shares that all_gather_start began to send; whole tensors, of these shapes",
)
