"""The mean of tensors over the processes that train one model, in two operators, so that others run between them.

    buffer: (9344,) uint8 = R.collective.all_reduce_start((w_grad, b_grad))
    ... the rest of the backward pass ...
    means = R.collective.all_reduce_done(buffer, shapes=[[3, 768], [2]], dtype="float32")

The first copies tensors into one buffer and begins; until the second returns, its memory belongs to the network. It is
bytes, so that nothing looks into it. Then it holds the sums, which what reads the means divides. Tensors may be sent in
bfloat16; their means are float32, and copied.
`autocast.training.parallel.average` places the calls, `autocast.runtime.collectives` is what they call.

Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020 (buckets of
gradients); Yu et al., "RAF", 2023 (collectives placed by a pass between backward and update).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.relax.op import memory

from autocast.errors import IllFormedModuleError
from autocast.ir.views import static_shape
from autocast.operators.operator import Expanded, Expansion, define
from autocast.runtime import collectives


def _start_result(call: relax.Call) -> tvm.ir.Type:
    return _buffer(list(call.args[0].ty.fields))


def _buffer(fields: Sequence[tvm.ir.Type]) -> tvm.ir.Type:
    """The bytes of tensors of one dtype."""
    shapes = [static_shape(relax.Var("part", ty)) for ty in fields]
    dtypes = {str(ty.dtype) for ty in fields}
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(fields) or len(dtypes) != 1:
        raise IllFormedModuleError(
            f"relax.collective.all_reduce_start: got {tvm.ir.TupleType(fields)}, expected tensors of one dtype whose "
            "sizes are known; average each dtype by itself"
        )
    return relax.TensorType([_room(known, tvm.DataType(dtypes.pop()).itemsize)], "uint8")


def _room(shapes: Sequence[Sequence[int]], itemsize: int) -> int:
    """How many bytes a buffer has for tensors of these shapes."""
    return collectives.places(map(math.prod, shapes))[-1] * itemsize


def _done_result(call: relax.Call) -> tvm.ir.Type:
    shapes = [[int(size) for size in shape] for shape in call.attrs["shapes"]]
    dtype = str(call.attrs["dtype"])
    legal = [(_room(shapes, itemsize),) for itemsize in {2, tvm.DataType(dtype).itemsize}]
    if static_shape(call.args[0]) not in legal:
        raise IllFormedModuleError(
            f"relax.collective.all_reduce_done: got {call.args[0].ty} and shapes={shapes}, expected the bytes of their "
            f"elements; the shapes are those of the tensors that all_reduce_start took"
        )
    return tvm.ir.TupleType([relax.TensorType(shape, dtype) for shape in shapes])


def expand_start(parts: Sequence[relax.Expr]) -> relax.Call:
    """The call that begins to send tensors of one dtype."""
    result = _buffer([part.ty for part in parts])
    return relax.op.call_dps_packed(collectives.START, relax.Tuple(parts), out_ty=result)


def expand_done(
    emit: Callable[[relax.Expr], relax.Var], buffer: relax.Expr, shapes: Sequence[Sequence[int]], dtype: str
) -> list[relax.Expr]:
    """The means of what was begun, of these shapes: parts of the buffer times what makes means of sums.

    What was sent in another dtype is copied.
    """
    itemsize = tvm.DataType(dtype).itemsize
    if static_shape(buffer) != (_room(shapes, itemsize),):
        types = [relax.TensorType(shape, dtype) for shape in shapes]
        copies = emit(_done_call(collectives.COPY, buffer, types))
        return [copies] if len(types) == 1 else [relax.TupleGetItem(copies, i) for i in range(len(types))]
    scale = emit(_done_call(collectives.DONE, buffer, [relax.TensorType([], dtype)]))
    places = collectives.places(map(math.prod, shapes))
    views = [memory.view(buffer, shape, dtype, at * itemsize) for shape, at in zip(shapes, places, strict=False)]
    return [relax.op.multiply(emit(view), scale) for view in views]


def _done_call(function: str, buffer: relax.Expr, types: Sequence[tvm.ir.Type]) -> relax.Call:
    return relax.op.call_dps_packed(
        function, relax.Tuple([buffer]), out_ty=types[0] if len(types) == 1 else list(types)
    )


def _start(e: Expansion) -> relax.Expr:
    (parts,) = e.operands
    return expand_start([e.emit(relax.TupleGetItem(parts, i)) for i in range(len(parts.ty.fields))])


def _done(e: Expansion) -> Expanded:
    return expand_done(e.emit, e.operands[0], e.call.attrs["shapes"], str(e.call.attrs["dtype"]))


#: `all_reduce_start((x, y))`: a buffer with room for both, which holds their sums over all ranks when it is done.
all_reduce_start = define(
    "relax.collective.all_reduce_start",
    "tensors*",
    result=_start_result,
    expand=_start,
    summary="begins to add up tensors over all ranks: one buffer, whose elements only all_reduce_done may read",
)

#: `all_reduce_done(buffer, shapes=[[2, 3], [4]], dtype="float32")`: the means over all ranks of what was begun.
all_reduce_done = define(
    "relax.collective.all_reduce_done",
    "buffer",
    result=_done_result,
    expand=_done,
    summary="waits for the sums that all_reduce_start began; a tensor of each shape, divided by the number of ranks",
)
