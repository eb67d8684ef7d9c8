"""Converters of Fourier transforms, of pairs of real numbers: products with matrices of sines and cosines, in float32.

A transform of `n` numbers takes `n * n` products instead of `n * log(n)`: torch computes those of more than `MOST`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op

#: Along one axis.
MOST = 512

#: The real and the imaginary part.
_Parts = tuple[relax.Expr, relax.Expr]


def _of_real(importer: Importer, node: fx.Node) -> relax.Expr:
    """`_fft_r2c(x, axes, normalization, onesided)`: the last of the axes first, a half of it if that is wanted."""
    x, axes, half = importer.arg(node, 0, "self"), _axes(node), bool(node.args[3])
    extents = [_extent(dims(x)[axis]) for axis in axes]
    count = extents[-1] // 2 + 1 if half else extents[-1]
    cosines, sines = _waves(extents[-1], count, str(dtype_of(x)))
    parts = tuple(_product(importer, x, matrix, axes[-1]) for matrix in (cosines, 0 - sines))
    return _finished(importer, node, _along(importer, (parts[0], parts[1]), axes[:-1], inverse=False), extents)


def _of_complex(importer: Importer, node: fx.Node) -> relax.Expr:
    """`_fft_c2c(x, axes, normalization, forward)`."""
    x, axes = importer.arg(node, 0, "self"), _axes(node)
    extents = [_extent(dims(x)[axis]) for axis in axes]
    parts = _along(importer, _parts(importer, x), axes, inverse=not node.args[3])
    return _finished(importer, node, parts, extents)


def _to_real(importer: Importer, node: fx.Node) -> relax.Expr:
    """`_fft_c2r(x, axes, normalization, last)`: of the last axis there is a half, whose other half is its conjugate."""
    x, axes, size = importer.arg(node, 0, "self"), _axes(node), _extent(node.args[3])
    extents = [*(_extent(dims(x)[axis]) for axis in axes[:-1]), size]
    half = size // 2 + 1
    if _extent(dims(x)[axes[-1]]) != half:
        raise ImportModelError(f"{dims(x)[axes[-1]]} frequencies of {size} numbers; expected {half}")
    real, imaginary = _along(importer, _parts(importer, x), axes[:-1], inverse=True)
    cosines, sines = (matrix.T[:half] for matrix in _waves(size, half, str(dtype_of(real))))
    twice = np.array([1 if at in (0, size - at) else 2 for at in range(half)], cosines.dtype)[:, None]
    whole = _product(importer, real, cosines * twice, axes[-1])
    result = importer.emit(op.subtract(whole, _product(importer, imaginary, sines * twice, axes[-1])))
    return _scaled(importer, node, result, extents)


def _axes(node: fx.Node) -> list[int]:
    rank = node.args[0].meta["val"].dim()
    return [int(axis) % rank for axis in node.args[1]]


def _extent(size: object) -> int:
    if not isinstance(size, int) or size > MOST:
        raise ImportModelError(f"a transform of {size} numbers; expected {MOST} at most")
    return size


def _waves(size: int, frequencies: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, of each number and each frequency; quarters of a turn are exact, as the angle of what has no
    imaginary part hangs on its sign."""
    turns = 4 * np.outer(np.arange(size), np.arange(frequencies)) % (4 * size)
    cosines, sines = (np.cos(turns * (np.pi / (2 * size))), np.sin(turns * (np.pi / (2 * size))))
    exact = turns % size == 0
    return np.where(exact, cosines.round(), cosines).astype(dtype), np.where(exact, sines.round(), sines).astype(dtype)


def _along(importer: Importer, parts: _Parts, axes: Sequence[int], *, inverse: bool) -> _Parts:
    """Complex transforms along some axes, not scaled."""
    real, imaginary = parts
    for axis in axes:
        size = _extent(dims(real)[axis])
        cosines, sines = _waves(size, size, str(dtype_of(real)))
        sines = sines if inverse else 0 - sines
        by = [[_product(importer, part, m, axis) for m in (cosines, sines)] for part in (real, imaginary)]
        real = importer.emit(op.subtract(by[0][0], by[1][1]))
        imaginary = importer.emit(op.add(by[0][1], by[1][0]))
    return real, imaginary


def _product(importer: Importer, x: relax.Expr, matrix: np.ndarray, axis: int) -> relax.Expr:
    """The product of `x` with a matrix, whose rows are along `axis`."""
    last = len(dims(x)) - 1
    order = [at for at in range(last + 1) if at != axis] + [axis]
    moved = x if axis == last else importer.emit(op.permute_dims(x, order))
    result = importer.emit(op.matmul(moved, relax.const(matrix)))
    return result if axis == last else importer.emit(op.permute_dims(result, [order.index(i) for i in range(last + 1)]))


def _parts(importer: Importer, x: relax.Expr) -> _Parts:
    """The two parts of pairs, without the axis that they are along."""
    last = len(dims(x)) - 1
    real, imaginary = (
        importer.emit(op.squeeze(op.strided_slice(x, [last], [i], [i + 1], assume_inbound=True), [last]))
        for i in range(2)
    )
    return real, imaginary


def _finished(importer: Importer, node: fx.Node, parts: _Parts, extents: Sequence[int]) -> relax.Expr:
    return _scaled(importer, node, importer.emit(op.stack(list(parts), -1)), extents)


def _scaled(importer: Importer, node: fx.Node, x: relax.Expr, extents: Sequence[int]) -> relax.Expr:
    """Divided as torch's normalization says: 0 by nothing, 1 by the root of how many numbers there are, 2 by that."""
    power = {0: 0.0, 1: -0.5, 2: -1.0}[int(node.args[2])]
    scale = float(np.prod([float(extent) for extent in extents]) ** power)
    return x if scale == 1 else importer.emit(op.multiply(x, relax.const(scale, str(dtype_of(x)))))


#: Converters by the name of the overload.
FOURIER: dict[str, Converter] = {
    "_fft_c2c.default": _of_complex,
    "_fft_c2r.default": _to_real,
    "_fft_r2c.default": _of_real,
}
