"""Write a sum of products of two tensors as a product of matrices, which has kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from autocast.ir import FLOATS, dims, dtype_of, same_shape, shape_of

op = relax.op


def einsum_as_matmul(
    call: relax.Call, operands: relax.Expr, emit: Callable[[relax.Expr], relax.Var]
) -> relax.Expr | None:
    """`einsum` of two floating-point tensors, each with its own indices once, that sums over some; None of others.

    Indices are those of the batch (in both operands and the result), of rows and columns (in one of them), and those
    that are summed. What only one operand has, and the result has not, is summed first.
    """
    inputs, arrow, output = str(call.attrs.subscripts).replace(" ", "").partition("->")
    labels = inputs.split(",")
    if not isinstance(operands, relax.Tuple) or len(labels) != 2 or "." in inputs or not arrow:
        return None
    tensors = list(operands.fields)
    if any(len(set(own)) != len(own) for own in (*labels, output)) or any(shape_of(x) is None for x in tensors):
        return None
    if dtype_of(tensors[0]) not in FLOATS or dtype_of(tensors[0]) != dtype_of(tensors[1]):
        return None
    sizes = dict(zip(labels[0], dims(tensors[0]), strict=True))
    if any(not same_shape((sizes.setdefault(i, n),), (n,)) for i, n in zip(labels[1], dims(tensors[1]), strict=True)):
        return None
    both = [index for index in labels[0] if index in labels[1]]
    batch, summed = [i for i in both if i in output], [i for i in both if i not in output]
    if not summed or 0 in sizes.values():
        return None
    rows, columns = ([i for i in own if i in output and i not in both] for own in labels)
    for place, (x, own) in enumerate(zip(tensors, labels, strict=True)):
        alone = [axis for axis, index in enumerate(own) if index not in both and index not in output]
        if alone:
            tensors[place] = emit(op.sum(x, alone))
            labels[place] = "".join(index for axis, index in enumerate(own) if axis not in alone)

    def size(indices: list[str]) -> object:
        return math.prod((sizes[index] for index in indices), start=1)

    def matrix(place: int, first: list[str], second: list[str]) -> relax.Expr:
        order = [labels[place].index(index) for index in (*batch, *first, *second)]
        moved = emit(op.permute_dims(tensors[place], order))
        return emit(op.reshape(moved, [*(sizes[i] for i in batch), size(first), size(second)]))

    product = emit(op.matmul(matrix(0, rows, summed), matrix(1, summed, columns)))
    found = [*batch, *rows, *columns]
    result = emit(op.reshape(product, [sizes[index] for index in found]))
    return op.permute_dims(result, [found.index(index) for index in output]) if found else result
