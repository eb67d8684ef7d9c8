"""Operands of operators that need the same sizes, where these have other expressions: `4 * (n // 4)` and `n`.

TVM does not know the shape of a sum of such tensors. They are given the same sizes here, and whether that is true is
looked at when the model runs (`autocast.kernels.phases.agreement`): a call where it is not is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast.frontend.onnx.expressions import of_sizes
from autocast.ir import shape_of

#: Operators whose operands are broadcast.
_ELEMENTWISE = frozenset(
    (
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub"),
        *("Sum", "Where", "Xor"),
    )
)

#: Of these TVM's importer compares expressions as they are written: `b * t * 2` is not `t * b * 2` to it.
_COMPARED = frozenset(("Max", "Mean", "Min", "Sum"))

#: Axes of a recurrent layer's operands: the width of X, the batch and the states' width.
_RECURRENT = ((0, 2, 1, 2), (0, 1, 5, 1), (5, 0, 1, 0), (5, 2, 2, 2))

#: Operator -> axes of operands that are as long as one of another's: (operand, its axis, the other, its axis).
_MATCHED: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "BatchNormalization": ((0, 1, 1, 0),),
    "Conv": ((0, 1, 1, 1),),
    "ConvTranspose": ((0, 1, 1, 0),),
    "GRU": _RECURRENT,
    "InstanceNormalization": ((0, 1, 1, 0),),
    "LSTM": (*_RECURRENT, (6, 0, 1, 0), (6, 1, 5, 1), (6, 2, 2, 2)),
    "MatMul": ((0, -1, 1, -2), (1, -2, 0, -1)),
    "RNN": _RECURRENT,
    "RoiAlign": ((2, 0, 1, 0), (1, 0, 2, 0)),
    "TensorScatter": ((0, 0, 2, 0), (1, 0, 0, 0), (2, 0, 0, 0)),
}


def agreed(
    builder: relax.BlockBuilder, name: str, inputs: Sequence[relax.Expr | None], attributes: Mapping[str, Any]
) -> list[relax.Expr | None]:
    """The inputs of a node, reshaped where they have to have sizes that nobody can know to be the same."""
    if name == "ScatterND":
        return _scattered(builder, [*inputs])
    if name in _MATCHED and not attributes.get("layout"):  # of recurrent layers whose batch comes first
        inputs = _matched(builder, name, [*inputs], attributes)
    if name not in _ELEMENTWISE and name not in ("Concat", "MatMul"):
        return [*inputs]
    tensors = [one for one in inputs if one is not None]
    shapes = [_shape(one) for one in tensors]
    known = [[*one] for one in shapes if one is not None]
    if len(known) < max(2, len(shapes)):
        return [*inputs]
    rank = max(map(len, known))
    joined = int(attributes.get("axis", 0))
    skipped = {"Concat": (joined - rank if joined >= 0 else joined,), "MatMul": (-1, -2)}.get(name, ())
    for axis in (axis for axis in range(-rank, 0) if axis not in skipped):
        rows = [one for one in known if len(one) >= -axis]
        for one in rows if name != "Concat" else ():
            one[axis] = 1 if _is_one_at_most(one[axis]) else one[axis]
        leader = _leader([one[axis] for one in rows], name != "Concat", name in _COMPARED)
        for one in rows:
            one[axis] = one[axis] if isinstance(one[axis], int) or leader is None else leader
    changed = {
        id(tensor): builder.emit(relax.op.reshape(tensor, to))
        for tensor, was, to in zip(tensors, shapes, known, strict=True)
        if not all(a is b for a, b in zip(was or (), to, strict=True))
    }
    return [changed.get(id(one), one) for one in inputs]


def _matched(
    builder: relax.BlockBuilder, name: str, inputs: list[Any], attributes: Mapping[str, Any]
) -> list[relax.Expr | None]:
    """Sizes that vary as those of the other operand, of a `Conv` as many channels as its groups have."""
    groups = int(attributes.get("group", 1)) if name == "Conv" else 1
    for at, axis, other, its in _MATCHED[name]:
        shapes = [_shape(inputs[place]) if place < len(inputs) else None for place in (at, other)]
        own, theirs = shapes
        if own is None or theirs is None or len(own) < (2 if axis < 0 else axis + 1) or (len(theirs) < 2 and its < 0):
            continue
        wanted = theirs[its] * groups if groups > 1 else theirs[its]
        if _leader((own[axis], wanted), False) is not None and not isinstance(own[axis], int):
            own[axis] = wanted
            inputs[at] = builder.emit(relax.op.reshape(inputs[at], own))
    return inputs


def _scattered(builder: relax.BlockBuilder, inputs: list[Any]) -> list[relax.Expr | None]:
    """The updates of a `ScatterND`: a row of what is left of the data for each place."""
    data, places, updates = map(_shape, inputs[:3])
    if data is None or places is None or updates is None or not isinstance(places[-1], int):
        return inputs
    to = [*places[:-1], *data[places[-1] :]]
    if len(to) == len(updates) and any(_leader(pair, False) is not None for pair in zip(to, updates, strict=True)):
        inputs[2] = builder.emit(relax.op.reshape(inputs[2], to))
    return inputs


def _shape(tensor: relax.Expr | None) -> list[Any] | None:
    if isinstance(tensor, relax.ShapeExpr):
        return [len(tensor.values)]
    sizes = None if tensor is None or not isinstance(tensor.ty, relax.TensorType) else shape_of(tensor)
    return None if sizes is None else [*sizes]


def _is_one_at_most(size: Any) -> bool:
    """Of a slice `[:1]`, which is broadcast unless it is empty."""
    return not isinstance(size, int) and bool(of_sizes([size]).can_prove(size <= 1))


def _leader(sizes: Sequence[Any], broadcasts: bool, is_compared: bool = False) -> Any:
    """What all sizes have to be, but those of 1 where they are broadcast; None if they are known to be the same.

    Those that are compared as they are written have to be written alike, too.
    """
    varying = [size for size in sizes if not isinstance(size, int)]
    numbers = [size for size in sizes if isinstance(size, int) and not (broadcasts and size == 1)]
    if not varying:
        return None
    names = [size for size in varying if isinstance(size, tirx.Var)]
    leader = (numbers or names or varying)[0]
    are_same = tvm_ffi.structural_equal if is_compared else _are_same
    return None if all(are_same(size, leader) for size in varying) else leader


def _are_same(a: Any, b: Any) -> bool:
    """Whether TVM's operators know that, whichever comes first: that `h` is `min(1, h) + max(h - 1, 0)` it can prove,
    and not that this is `h`."""
    analyzer = tvm.sym.Analyzer()
    return bool(analyzer.can_prove_equal(a, b) and analyzer.can_prove_equal(b, a))
