"""Matrix products: the adjoint of each operand is a product of the adjoint and the other operand."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of
from autocast.operators import own
from autocast.operators.own.grouped import products_of_groups
from autocast.training.gradients.registry import Adjoint, Backward, gradient
from autocast.training.gradients.shapes import known_shape, rank, reshaped, unbroadcast


def _transposed(matrix: relax.Expr, count: int) -> relax.Expr:
    """The last two axes exchanged."""
    return op.permute_dims(matrix, [*range(count - 2), count - 1, count - 2])


def _matmul(b: Backward) -> list[Adjoint]:
    left, right = b.call.args
    ranks = rank(left), rank(right)
    adjoint = b.adjoint
    # A vector is a matrix of one row on the left, of one column on the right.
    if ranks[0] == 1:
        left, adjoint = b.emit(op.expand_dims(left, 0)), b.emit(op.expand_dims(adjoint, -1 if ranks[1] == 1 else -2))
    if ranks[1] == 1:
        right, adjoint = b.emit(op.expand_dims(right, 1)), b.emit(op.expand_dims(adjoint, -1))
    return [
        _of_left(b, left, right, adjoint) if b.needs[0] else None,
        _of_right(b, left, right, adjoint) if b.needs[1] else None,
    ]


def _of_left(b: Backward, left: relax.Expr, right: relax.Expr, adjoint: relax.Expr) -> relax.Expr:
    product = op.matmul(adjoint, _transposed(right, rank(right)), out_dtype=_accumulated(b))
    return _shaped(b, product, b.call.args[0], left)


def _of_right(b: Backward, left: relax.Expr, right: relax.Expr, adjoint: relax.Expr) -> relax.Expr:
    """leftᵀ adjoint; a matrix that all of a batch shares sums over the rows of the whole batch in one product."""
    if rank(right) == 2 and rank(left) > 2:
        left, adjoint = _rows(b, left), _rows(b, adjoint)
    product = op.matmul(_transposed(left, rank(left)), adjoint, out_dtype=_accumulated(b))
    return _shaped(b, product, b.call.args[1], right)


def _rows(b: Backward, matrices: relax.Expr) -> relax.Expr:
    """A batch of matrices as one, their rows below each other."""
    *rows, columns = known_shape(matrices)
    return b.emit(op.reshape(matrices, relax.ShapeExpr([math.prod(rows[1:], start=rows[0]), columns])))


def _accumulated(b: Backward) -> str | None:
    """The dtype that the product must have where the operands' is another."""
    operand, result = (dtype_of(expr) for expr in (b.call.args[0], b.result))
    return None if operand == result else operand


def _shaped(b: Backward, product: relax.Expr, argument: relax.Expr, matrix: relax.Expr) -> relax.Expr:
    """The adjoint of an argument from that of the matrix that it was taken as."""
    adjoint = unbroadcast(b, product, matrix)
    return adjoint if rank(argument) == rank(matrix) else reshaped(adjoint, argument)


def _einsum(b: Backward) -> list[Adjoint]:
    """Exchange the output with each operand in turn: "ij,jk->ik" gives "ik,jk->ij" and "ij,ik->jk"."""
    subscripts = str(b.call.attrs.subscripts).replace(" ", "")
    inputs, _, output = subscripts.partition("->")
    labels = inputs.split(",")
    operands = b.call.args[0]
    fields = [b.emit(relax.TupleGetItem(operands, i)) for i in range(len(labels))]
    adjoints = []
    for place, wanted in enumerate(labels):
        others = [label for i, label in enumerate(labels) if i != place]
        if "->" not in subscripts or "." in subscripts or not set(wanted) <= set("".join([output, *others])):
            raise GradientError(
                f"subscripts={subscripts!r}; expected an explicit output, no ellipsis, and no index of one operand only"
            )
        if any(len(set(label)) != len(label) for label in (*labels, output)):
            raise GradientError(f"subscripts={subscripts!r}; expected no index twice in one operand")
        others_fields = [field for i, field in enumerate(fields) if i != place]
        adjoints.append(op.einsum([b.adjoint, *others_fields], f"{','.join([output, *others])}->{wanted}"))
    return [tuple(adjoints)]


def _grouped_matmul(b: Backward) -> list[Adjoint]:
    x, weight, ends = b.call.args
    rows = own.grouped_matmul(b.adjoint, _transposed(weight, 3), ends) if b.needs[0] else None
    return [rows, products_of_groups(b.emit, x, ends, b.adjoint) if b.needs[1] else None, None]


RULES = (
    gradient("relax.matmul", _matmul, why="adjoint rightᵀ, leftᵀ adjoint"),
    gradient(
        "relax.nn.grouped_matmul",
        _grouped_matmul,
        why="the grouped product of the adjoint and weightᵀ; xᵀ adjoint over the rows of each group",
    ),
    gradient("relax.einsum", _einsum, why="the einsum that exchanges an operand with the output"),
)
