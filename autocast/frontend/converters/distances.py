"""Converters of distances between rows, and of products of three tensors."""

from __future__ import annotations

import math
from string import ascii_letters

import numpy as np
from torch import fx
from tvm import relax

from autocast.frontend.converters.helpers import Converter, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op


def _length(importer: Importer, rows: relax.Expr, order: float) -> relax.Expr:
    """The norms of rows along the last axis; the root of 0 has the gradient 0, as torch's distances have."""
    zero, one = (relax.const(value, dtype_of(rows)) for value in (0, 1))
    if order == 0:
        return importer.emit(op.sum(op.astype(op.not_equal(rows, zero), dtype_of(rows)), -1))
    size = importer.emit(op.abs(rows))
    if math.isinf(order):
        return importer.emit(op.max(size, -1))
    if order == 1:
        return importer.emit(op.sum(size, -1))
    total = op.sum(op.square(rows) if order == 2 else op.power(size, relax.const(order, dtype_of(rows))), -1)
    total = importer.emit(total)
    vanishes = importer.emit(op.equal(total, zero))
    safe = importer.emit(op.where(vanishes, one, total))
    root = op.sqrt(safe) if order == 2 else op.power(safe, relax.const(1 / order, dtype_of(rows)))
    return importer.emit(op.where(vanishes, zero, importer.emit(root)))


def _between(importer: Importer, node: fx.Node) -> relax.Expr:
    """`cdist`: of each row of one matrix from each of another, by differences: products would lose their digits."""
    x, y = (importer.arg(node, i, "") for i in range(2))
    difference = importer.emit(op.subtract(op.expand_dims(x, -2), op.expand_dims(y, -3)))
    return _length(importer, difference, float(node.args[2]))


def _within(importer: Importer, node: fx.Node) -> relax.Expr:
    """`pdist`: of each row of a matrix from each after it."""
    x = importer.arg(node, 0, "self")
    first, second = np.triu_indices(int(dims(x)[0]), 1)
    rows = [op.take(x, relax.const(places), axis=0, mode="clip") for places in (first, second)]
    return _length(importer, importer.emit(op.subtract(*rows)), float(importer.arg(node, 1, "p", 2)))


def _product_of_three(importer: Importer, node: fx.Node) -> relax.Expr:
    """`_trilinear`: a product of three tensors with axes added to each, summed over axes."""
    tensors, added, summed = node.args[:3], node.args[3:6], node.args[6]
    rank = len(dims(importer.env[tensors[0]])) + len(added[0])
    letters = ascii_letters[:rank]
    operands = ["".join(letters[axis] for axis in range(rank) if axis not in axes) for axes in added]
    result = "".join(letters[axis] for axis in range(rank) if axis not in summed)
    values = [importer.env[tensor] for tensor in tensors]
    return importer.emit(op.einsum(values, f"{','.join(operands)}->{result}"))


#: Converters by the name of the overload.
DISTANCES: dict[str, Converter] = {
    "_cdist_forward.default": _between,
    "_pdist_forward.default": _within,
    "_trilinear.default": _product_of_three,
}
