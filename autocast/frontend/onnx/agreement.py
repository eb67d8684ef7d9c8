"""Operands of operators that need the same sizes, where these have other expressions: `4 * (n // 4)` and `n`.

TVM does not know the shape of a sum of such tensors. They are given the same sizes here, and whether that is true is
looked at when the model runs (`autocast.kernels.phases.agreement`): a call where it is not is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from autocast.ir import shape_of

#: Operators whose operands are broadcast.
_ELEMENTWISE = frozenset(
    (
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub"),
        *("Sum", "Where", "Xor"),
    )
)


def agreed(
    builder: relax.BlockBuilder, name: str, inputs: Sequence[relax.Expr | None], attributes: Mapping[str, Any]
) -> list[relax.Expr | None]:
    """The inputs of a node, reshaped where they have to have sizes that nobody can know to be the same."""
    tensors = [one for one in inputs if one is not None]
    shapes = [shape_of(one) if isinstance(one.ty, relax.TensorType) else None for one in tensors]
    if (name not in _ELEMENTWISE and name != "Concat") or any(one is None for one in shapes) or len(shapes) < 2:
        return [*inputs]
    known = [list(one) for one in shapes if one is not None]
    rank = max(map(len, known))
    skipped = int(attributes["axis"]) % rank if name == "Concat" else None
    for axis in range(-rank, 0):
        rows = [one for one in known if len(one) >= -axis]
        if axis + rank != skipped:
            leader = _leader([one[axis] for one in rows], name != "Concat")
            for one in rows:
                one[axis] = one[axis] if isinstance(one[axis], int) or leader is None else leader
    changed = {
        id(tensor): builder.emit(relax.op.reshape(tensor, to))
        for tensor, was, to in zip(tensors, shapes, known, strict=True)
        if not all(a is b for a, b in zip(was or (), to, strict=True))
    }
    return [changed.get(id(one), one) for one in inputs]


def _leader(sizes: Sequence[Any], broadcasts: bool) -> Any:
    """What all sizes have to be, but those of 1 where they are broadcast; None if they are known to be the same."""
    varying = [size for size in sizes if not isinstance(size, int)]
    numbers = [size for size in sizes if isinstance(size, int) and not (broadcasts and size == 1)]
    if not varying:
        return None
    leader = numbers[0] if numbers else varying[0]
    analyzer = tvm.sym.Analyzer()
    return None if all(analyzer.can_prove_equal(size, leader) for size in varying) else leader
