"""Converters of complex numbers, which are pairs of real ones: the last axis of their tensors has two elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.arithmetic import hypotenuse
from autocast.frontend.converters.fourier import FOURIER
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.converters.indexing import with_slice
from autocast.frontend.converters.movement import MOVEMENT, slice_bounds
from autocast.frontend.importing.importer import Importer

op = relax.op


def _complex(importer: Importer, node: fx.Node) -> relax.Expr:
    """`torch.complex(real, imaginary)`."""
    shape = importer.shape(node)[:-1]
    parts = [importer.emit(op.broadcast_to(importer.arg(node, i, ""), shape)) for i in range(2)]
    return importer.emit(op.stack(parts, -1))


def _multiply(importer: Importer, node: fx.Node) -> relax.Expr:
    """`(a + bi) (c + di)`, where one of both may be real."""
    dtype = importer.dtype(node)
    for one, other in ((0, 1), (1, 0)):
        if not _is_complex(node.args[other]):
            real = _real(importer, node.args[other], dtype)
            return importer.emit(op.multiply(_pair(importer, node.args[one], dtype), real))
    values = [_pair(importer, value, dtype) for value in node.args[:2]]
    (a, b), (c, d) = (_parts(importer, value) for value in values)
    real = importer.emit(op.subtract(op.multiply(a, c), op.multiply(b, d)))
    imaginary = importer.emit(op.add(op.multiply(a, d), op.multiply(b, c)))
    return importer.emit(op.concat([real, imaginary], axis=-1))


def _parts(importer: Importer, pairs: relax.Expr) -> list[relax.Expr]:
    """The real and the imaginary part, with a last axis of one element each."""
    last = len(dims(pairs)) - 1
    return [importer.emit(op.strided_slice(pairs, [last], [i], [i + 1], assume_inbound=True)) for i in range(2)]


def _sum(importer: Importer, node: fx.Node) -> relax.Expr:
    """`a + alpha * b`, or `a - alpha * b`, where one of both may be real, or a number."""
    operator = op.subtract if node.target is torch.ops.aten.sub.Tensor else op.add
    left, right = (_pair(importer, value, importer.dtype(node)) for value in node.args[:2])
    alpha = node.kwargs.get("alpha", 1)
    if isinstance(alpha, complex):
        raise ImportModelError("a complex factor of what is added")
    if alpha != 1:
        right = importer.emit(op.multiply(right, relax.const(alpha, importer.dtype(node))))
    return importer.emit(operator(left, right))


def _divide(importer: Importer, node: fx.Node) -> relax.Expr:
    """Complex numbers divided by a real one."""
    if _is_complex(node.args[1]):
        raise ImportModelError("a division by complex numbers")
    return importer.emit(op.divide(importer.arg(node, 0, ""), _real(importer, node.args[1], importer.dtype(node))))


def _is_complex(value: Any) -> bool:
    return value.meta["val"].is_complex() if isinstance(value, fx.Node) else isinstance(value, complex)


def _real(importer: Importer, value: Any, dtype: str) -> relax.Expr:
    """A real tensor, or number, that both parts are multiplied with."""
    if isinstance(value, fx.Node):
        return importer.emit(op.expand_dims(cast(importer, importer.env[value], dtype), -1))
    return relax.const(value, dtype)


def _pair(importer: Importer, value: Any, dtype: str) -> relax.Expr:
    """A tensor or a number as pairs: a real one has no imaginary part."""
    if not isinstance(value, fx.Node):
        return relax.const(np.array([complex(value).real, complex(value).imag]), dtype)
    x = cast(importer, importer.env[value], dtype)
    return x if _is_complex(value) else importer.emit(op.stack([x, op.zeros_like(x)], -1))


def _matmul(importer: Importer, node: fx.Node) -> relax.Expr:
    """A product of complex matrices: four of real ones."""
    pairs = [_pair(importer, value, importer.dtype(node)) for value in node.args[:2]]
    (a, b), (c, d) = ([importer.emit(op.squeeze(part, [-1])) for part in _parts(importer, pair)] for pair in pairs)
    real = importer.emit(op.subtract(op.matmul(a, c), op.matmul(b, d)))
    imaginary = importer.emit(op.add(op.matmul(a, d), op.matmul(b, c)))
    return importer.emit(op.stack([real, imaginary], -1))


def _negative(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(op.negative(importer.arg(node, 0, "self")))


def _exponential(importer: Importer, node: fx.Node) -> relax.Expr:
    """The exponential of the real part, turned by the imaginary one."""
    real, angle = _parts(importer, importer.arg(node, 0, "self"))
    length = importer.emit(op.exp(real))
    return importer.emit(op.concat([op.multiply(length, turn(angle)) for turn in (op.cos, op.sin)], -1))


def _axes(node: fx.Node, position: int, rank: int) -> list[int]:
    """The axes that are an argument, counted from the first; all where none is named."""
    axes = node.args[position] if len(node.args) > position else None
    axes = axes if isinstance(axes, list | tuple) else [] if axes is None else [axes]
    return [int(axis) % rank for axis in axes] or list(range(rank))


def _unsqueeze(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(op.expand_dims(importer.arg(node, 0, "self"), _axes(node, 1, node.meta["val"].dim())))


def _squeeze(importer: Importer, node: fx.Node) -> relax.Expr:
    """Axes whose size is not 1 stay."""
    x = importer.arg(node, 0, "self")
    shape = dims(x)[:-1]
    ones = [axis for axis in _axes(node, 1, len(shape)) if isinstance(shape[axis], int) and shape[axis] == 1]
    return importer.emit(op.squeeze(x, ones)) if shape and ones else x


def _select(importer: Importer, node: fx.Node) -> relax.Expr:
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    (axis,) = _axes(node, 1, len(dims(x)) - 1)
    if not isinstance(index, int):
        raise ImportModelError("an index that is known only at run time")
    begin = index if index >= 0 else dims(x)[axis] + index
    part = importer.emit(op.strided_slice(x, [axis], [begin], [begin + 1], assume_inbound=True))
    return importer.emit(op.squeeze(part, [axis]))


def _cat(importer: Importer, node: fx.Node) -> relax.Expr:
    rank = node.meta["val"].dim()
    parts = [value for value in node.args[0] if rank == 1 or value.meta["val"].shape != (0,)]  # as torch ignores them
    axis = int(importer.arg(node, 1, "dim", 0)) % rank
    return importer.emit(op.concat([_pair(importer, value, importer.dtype(node)) for value in parts], axis))


def _total(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    rank = len(dims(x)) - 1
    return importer.emit(op.sum(x, _axes(node, 1, rank), bool(importer.arg(node, 2, "keepdim", False)))) if rank else x


def _moved(importer: Importer, node: fx.Node) -> relax.Expr:
    """A permutation of the axes before that of the pairs."""
    x = importer.arg(node, 0, "self")
    rank = len(dims(x)) - 1
    return importer.emit(op.permute_dims(x, [*(int(axis) % rank for axis in node.args[1]), rank]))


def _slice(importer: Importer, node: fx.Node) -> relax.Expr:
    x, rank = importer.arg(node, 0, "self"), node.args[0].meta["val"].dim()
    axis = int(importer.arg(node, 1, "dim", 0)) % rank
    begin, end = slice_bounds(importer, node, dims(x)[axis], axis, 2)
    step = importer.arg(node, 4, "step", 1)
    return importer.emit(op.strided_slice(x, [axis], [begin], [end], [step], assume_inbound=True))


def _slice_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    x, source = (_pair(importer, value, importer.dtype(node)) for value in node.args[:2])
    return with_slice(importer, node, x, source, int(importer.arg(node, 2, "dim", 0)) % node.meta["val"].dim())


def _spread(importer: Importer, node: fx.Node) -> relax.Expr:
    """What `x.copy_(source)` leaves in x, and `full_like(x, number)`."""
    x = _pair(importer, node.args[1], importer.dtype(node))
    return importer.emit(op.broadcast_to(x, importer.shape(node)))


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
            "empty.memory_format",
            "empty_strided.default",
            "expand.default",
            "getitem",
            "new_empty_strided.default",
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
    "add.Tensor": _sum,
    "bmm.default": _matmul,
    "cat.default": _cat,
    "complex.default": _complex,
    "constant_pad_nd.default": _padded,
    "copy.default": _spread,
    "div.Tensor": _divide,
    "exp.default": _exponential,
    "full_like.default": _spread,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "mul.Scalar": _multiply,
    "mul.Tensor": _multiply,
    "neg.default": _negative,
    "permute.default": _moved,
    "polar.default": _polar,
    "select.int": _select,
    "slice.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    "squeeze.dims": _squeeze,
    "sub.Tensor": _sum,
    "sum.dim_IntList": _total,
    "unsqueeze.default": _unsqueeze,
}
