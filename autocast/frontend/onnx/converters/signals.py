"""Fourier transforms, as products with matrices of cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, fixed, shape, static

op = relax.op


def _dft(node: Node) -> relax.Expr:
    x, attributes = node[0], node.attributes
    rank = len(shape(x))
    inputs_axis = node.known_or(2, "axis", np.array(-2)).item() if node.opset >= 20 else attributes.get("axis", 1)
    axis = int(inputs_axis) % rank
    length = int(node.known_or(1, "length", np.array(0)).item())
    is_inverse, is_half = bool(attributes.get("inverse")), bool(attributes.get("onesided"))
    return _transformed(node, x, axis, length, is_inverse, is_half)


def _transformed(node: Node, x: relax.Expr, axis: int, length: int, is_inverse: bool, is_half: bool) -> relax.Expr:
    """The transform along `axis` of numbers whose parts are along the last one; `length` 0 is that of the axis."""
    extents, rank = shape(x), len(shape(x))
    (parts,), extent = fixed(extents[-1:], "last axis"), extents[axis]
    if is_inverse and is_half:
        return _real_inverse(node, x, axis, length)
    count, used = length or extent, extent
    if length:
        (extent,) = fixed([extent], "axis, which is cut or filled up,")
        used = min(count, extent)
        x = node.emit(op.strided_slice(x, axes=[axis], begin=[0], end=[used]))
    wide = "float64" if dtype(x) == "float64" else "float32"
    scale = node.emit(op.divide(relax.const(1.0, wide), node.cast(node.size(count), wide))) if is_inverse else None
    cosines, sines = _waves(node, (used, count // 2 + 1 if is_half else count), count, wide)
    if scale is not None:
        cosines, sines = (node.emit(op.multiply(wave, scale)) for wave in (cosines, sines))
    order = [at for at in range(rank - 1) if at != axis] + [axis]
    pieces = [
        node.cast(op.permute_dims(op.squeeze(node.emit(_part(x, at)), axis=[rank - 1]), order), wide)
        for at in range(parts)
    ]
    by = [[node.emit(op.matmul(piece, matrix)) for matrix in (cosines, sines)] for piece in pieces]
    forward = op.subtract if is_inverse else op.add  # of what sines of the imaginary part give to the real one
    if parts == 1:
        real = by[0][0]
        imaginary = by[0][1] if is_inverse else node.emit(op.negative(by[0][1]))
    else:
        real = node.emit(forward(by[0][0], by[1][1]))
        turned = op.add(by[1][0], by[0][1]) if is_inverse else op.subtract(by[1][0], by[0][1])
        imaginary = node.emit(turned)
    back = [order.index(at) for at in range(rank - 1)]
    both = [node.cast(op.permute_dims(part, back), dtype(x)) for part in (real, imaginary)]
    return node.emit(op.stack(both, axis=-1))


def _waves(node: Node, sizes: tuple[Any, Any], count: Any, wide: str) -> tuple[relax.Expr, relax.Expr]:
    """Cosines and sines (times, frequencies) of whole turns over `count`, rounded once: sums that are zero need it."""
    if all(isinstance(size, int) for size in (*sizes, count)):
        turns = np.outer(*map(np.arange, sizes)) % count
        cosines, sines = (function(2 * np.pi * turns / count).astype(wide) for function in (np.cos, np.sin))
        return relax.const(cosines), relax.const(sines)
    times, frequencies = (op.arange(0, size, 1, "int64") for size in sizes)
    products = op.multiply(op.expand_dims(times, 1), op.expand_dims(frequencies, 0))
    turns = node.emit(op.floor_mod(products, node.size(count)))
    part = op.divide(node.cast(turns, "float64"), node.cast(node.size(count), "float64"))
    angle = node.emit(op.multiply(part, relax.const(2 * np.pi, "float64")))
    return node.cast(op.cos(angle), wide), node.cast(op.sin(angle), wide)


def _real_inverse(node: Node, x: relax.Expr, axis: int, length: int) -> relax.Expr:
    """The real numbers that a half of a spectrum is of, whose other half is its conjugate."""
    rank = len(shape(x))
    (extent,) = fixed([shape(x)[axis]], "axis")
    count = length or 2 * (extent - 1)
    used = min(count // 2 + 1, extent)
    x = node.emit(op.strided_slice(x, axes=[axis], begin=[0], end=[used]))
    frequencies = np.arange(used)
    angle = 2 * np.pi * np.outer(frequencies, np.arange(count)) / count
    twice = np.where((frequencies == 0) | (2 * frequencies == count), 1, 2)[:, None] / count
    wide = "float64" if dtype(x) == "float64" else "float32"
    order = [at for at in range(rank - 1) if at != axis] + [axis]
    sums = [
        node.emit(
            op.matmul(
                node.cast(op.permute_dims(op.squeeze(node.emit(_part(x, at)), axis=[rank - 1]), order), wide),
                relax.const((function(angle) * twice).astype(wide)),
            )
        )
        for at, function in enumerate((np.cos, np.sin))
    ]
    back = [order.index(at) for at in range(rank - 1)]
    real = op.permute_dims(op.subtract(*sums), back)
    return node.emit(op.expand_dims(node.cast(real, dtype(x)), axis=-1))


def _part(x: relax.Expr, at: int) -> relax.Expr:
    return op.strided_slice(x, axes=[len(shape(x)) - 1], begin=[at], end=[at + 1])


def _stft(node: Node) -> relax.Expr:
    """Frames of a signal (batch, length, parts), by a window, and transformed: (batch, frames, frequencies, 2)."""
    x, window = node[0], node.get(2)
    total = shape(x)[1]
    step = int(node.known(1, "step").item())
    length = static(window, "window")[0] if window is not None else 0
    length = int(node.known_or(3, "length of frames", np.array(length)).item())
    begins = op.arange(0, (total - length) // step + 1, 1, "int64")
    begins = node.emit(op.expand_dims(op.multiply(begins, relax.const(step, "int64")), 1))
    places = node.emit(op.add(begins, relax.const(np.arange(length)[None], "int64")))
    frames = node.emit(op.take(x, places, axis=1, mode="clip"))
    if window is not None:
        frames = node.emit(op.multiply(frames, op.reshape(window, [1, 1, length, 1])))
    return _transformed(node, frames, 2, 0, False, bool(node.attributes.get("onesided", 1)))


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
