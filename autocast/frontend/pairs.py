"""Converters of complex numbers, which are pairs of real ones: the last axis of their tensors has two elements."""

from __future__ import annotations

import torch
from torch import fx
from tvm import relax

from autocast.frontend.helpers import Converter, cast, dims
from autocast.frontend.importer import Importer
from autocast.frontend.movement import MOVEMENT

op = relax.op


def _complex(importer: Importer, node: fx.Node) -> relax.Expr:
    """`torch.complex(real, imaginary)`."""
    shape = importer.shape(node)[:-1]
    parts = [importer.emit(op.broadcast_to(importer.arg(node, i, ""), shape)) for i in range(2)]
    return importer.emit(op.stack(parts, -1))


def _multiply(importer: Importer, node: fx.Node) -> relax.Expr:
    """`(a + bi) (c + di)`, where one of both may be real."""
    values = [importer.arg(node, i, "") for i in range(2)]
    metas = [value.meta["val"] for value in node.args]
    dtype = importer.dtype(node)
    if not all(meta.is_complex() for meta in metas):
        pairs, real = (values[0], values[1]) if metas[0].is_complex() else (values[1], values[0])
        return importer.emit(op.multiply(pairs, op.expand_dims(cast(importer, real, dtype), -1)))
    (a, b), (c, d) = (_parts(importer, value) for value in values)
    real = importer.emit(op.subtract(op.multiply(a, c), op.multiply(b, d)))
    imaginary = importer.emit(op.add(op.multiply(a, d), op.multiply(b, c)))
    return importer.emit(op.concat([real, imaginary], axis=-1))


def _parts(importer: Importer, pairs: relax.Expr) -> list[relax.Expr]:
    """The real and the imaginary part, with a last axis of one element each."""
    last = len(dims(pairs)) - 1
    return [importer.emit(op.strided_slice(pairs, [last], [i], [i + 1], assume_inbound=True)) for i in range(2)]


def _moved(importer: Importer, node: fx.Node) -> relax.Expr:
    """A permutation of the axes before that of the pairs."""
    x = importer.arg(node, 0, "self")
    rank = len(dims(x)) - 1
    return importer.emit(op.permute_dims(x, [*(int(axis) % rank for axis in node.args[1]), rank]))


def _conjugate(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(op.multiply(x, relax.const(torch.tensor([1.0, -1.0]).numpy(), importer.dtype(node))))


#: Converters of operators that take or return complex numbers, by the name of the overload; others do not know them.
PAIRS: dict[str, Converter] = {
    **{
        name: MOVEMENT[name]
        for name in (
            "alias.default",
            "clone.default",
            "expand.default",
            "getitem",
            "view.default",
            "view_as_complex.default",
            "view_as_real.default",
        )
    },
    "_conj.default": _conjugate,
    "_conj_physical.default": _conjugate,
    "complex.default": _complex,
    "mul.Tensor": _multiply,
    "permute.default": _moved,
}
