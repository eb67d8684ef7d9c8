"""Converters of complex numbers, which are pairs of real ones: the last axis of their tensors has two elements."""

from __future__ import annotations

import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.arithmetic import hypotenuse
from autocast.frontend.fourier import FOURIER
from autocast.frontend.helpers import Converter, cast, dims
from autocast.frontend.importer import Importer
from autocast.frontend.movement import MOVEMENT, bound

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


def _slice(importer: Importer, node: fx.Node) -> relax.Expr:
    x, rank = importer.arg(node, 0, "self"), node.args[0].meta["val"].dim()
    axis = int(importer.arg(node, 1, "dim", 0)) % rank
    size = dims(x)[axis]
    begin, end = bound(importer.arg(node, 2, "start"), size, 0), bound(importer.arg(node, 3, "end"), size, size)
    step = importer.arg(node, 4, "step", 1)
    return importer.emit(op.strided_slice(x, [axis], [begin], [end], [step], assume_inbound=True))


def _padded(importer: Importer, node: fx.Node) -> relax.Expr:
    """Zeros around, or less than there was."""
    x, widths = importer.arg(node, 0, "self"), list(node.args[1])
    if importer.arg(node, 2, "value", 0) != 0 or not all(isinstance(width, int) for width in widths):
        raise ImportModelError("padding of complex numbers with others than 0, or of sizes known only at run time")
    rank = node.args[0].meta["val"].dim()
    around = [(0, 0)] * (rank - len(widths) // 2) + list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    for axis, (before, after) in enumerate(around):
        if min(before, after) < 0:
            size = dims(x)[axis]
            begin, end = max(-before, 0), size - max(-after, 0)
            x = importer.emit(op.strided_slice(x, [axis], [begin], [end], assume_inbound=True))
    kept = [max(width, 0) for pair in (*around, (0, 0)) for width in pair]
    return importer.emit(op.nn.pad(x, kept)) if any(kept) else x


def _to_complex(importer: Importer, node: fx.Node) -> relax.Expr:
    """A conversion of real numbers, or of complex ones, to complex numbers."""
    x = cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))
    if not node.meta["val"].is_complex():
        raise ImportModelError("complex numbers as real ones")
    return x if node.args[0].meta["val"].is_complex() else importer.emit(op.stack([x, op.zeros_like(x)], -1))


def _polar(importer: Importer, node: fx.Node) -> relax.Expr:
    """`torch.polar(length, angle)`."""
    length, angle = (importer.arg(node, i, "") for i in range(2))
    shape = importer.shape(node)[:-1]
    parts = [importer.emit(op.multiply(length, turn(angle))) for turn in (op.cos, op.sin)]
    return importer.emit(op.stack([importer.emit(op.broadcast_to(part, shape)) for part in parts], -1))


def _length(importer: Importer, node: fx.Node) -> relax.Expr:
    """The absolute value."""
    x = importer.arg(node, 0, "self")
    real, imaginary = (importer.emit(op.squeeze(part, [len(dims(x)) - 1])) for part in _parts(importer, x))
    return hypotenuse(importer, real, imaginary)


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
    **FOURIER,
    "_conj.default": _conjugate,
    "_conj_physical.default": _conjugate,
    "_to_copy.default": _to_complex,
    "abs.default": _length,
    "complex.default": _complex,
    "constant_pad_nd.default": _padded,
    "mul.Tensor": _multiply,
    "permute.default": _moved,
    "polar.default": _polar,
    "slice.Tensor": _slice,
}
