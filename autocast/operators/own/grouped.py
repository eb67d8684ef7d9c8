"""The product of a mixture of experts: rows that are sorted by expert, each times the matrix of its own.

Where one expert's rows end and the next one's begin is known only when the model runs.

Source: Gale, Narayanan, Young, Zaharia, "MegaBlocks: efficient sparse training with mixture-of-experts", 2023.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dims, dtype_of, shape_of
from autocast.operators.operator import Expansion, define

op = relax.op


def rows_of_groups(x: relax.Expr, ends: relax.Expr) -> relax.Expr:
    """Whether each row of x is in each group: (groups, rows, 1)."""
    (rows, *_), (groups,) = dims(x), dims(ends)
    dtype = dtype_of(ends)
    ended = op.less_equal(op.expand_dims(ends, 1), op.arange(0, rows, 1, dtype))
    group = op.sum(op.astype(ended, dtype), 0)
    inside = op.equal(op.expand_dims(op.arange(0, groups, 1, dtype), 1), group)
    return op.expand_dims(inside, 2)


def products_of_groups(
    emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr, ends: relax.Expr, y: relax.Expr
) -> relax.Expr:
    """xᵀ y over the rows of each group, (groups, columns of x, columns of y): rows of the others are zeros.

    It is the gradient of `grouped_matmul` with respect to the matrices, where y is that of its result.
    """
    inside = emit(rows_of_groups(x, ends))
    of_groups = emit(op.where(inside, x, relax.const(0.0, dtype_of(x))))
    return op.matmul(emit(op.permute_dims(of_groups, [0, 2, 1])), emit(op.expand_dims(y, 0)))


def _result(call: relax.Call) -> relax.TensorType:
    x, weight, ends = (shape_of(operand) for operand in call.args)
    if x is None or weight is None or ends is None or (len(x), len(weight), len(ends)) != (2, 3, 1):
        types = ", ".join(str(operand.ty) for operand in call.args)
        raise IllFormedModuleError(
            f"relax.nn.grouped_matmul: got ({types}), expected x of shape (rows, k), weight of (groups, k, "
            "columns) and ends of (groups,)"
        )
    for what, one, other in (("k of x and weight", x[1], weight[1]), ("groups of weight and ends", weight[0], ends[0])):
        if isinstance(one, int) and isinstance(other, int) and one != other:
            raise IllFormedModuleError(f"relax.nn.grouped_matmul: the {what} are {one} and {other}, expected the same")
    return relax.TensorType([x[0], weight[2]], dtype_of(call.args[0]))


def _expand(e: Expansion) -> relax.Expr:
    """Every row times every matrix, of which one is kept: what is multiplied in vain may be infinite."""
    x, weight, ends = e.operands
    wide = None if dtype_of(x) == "float64" else "float32"
    products = e.emit(op.matmul(op.expand_dims(x, 0), weight, out_dtype=wide))
    inside = e.emit(rows_of_groups(x, ends))
    return op.sum(op.where(inside, products, relax.const(0, dtype_of(products))), 0)


grouped_matmul = define(
    "relax.nn.grouped_matmul",
    "x weight ends",
    result=_result,
    expand=_expand,
    summary="Rows ends[i - 1] to ends[i] of x times weight[i]; rows after the last end give zeros",
    multiplies=True,
)
