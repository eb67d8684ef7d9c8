"""Converters of maxima of windows that begin where random numbers say, for each channel of each entry of a batch.

Source: Graham, "Fractional Max-Pooling", 2014.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, dims
from autocast.frontend.importing.importer import Importer
from autocast.frontend.nodes import results_read
from autocast.ir import dtype_of

op = relax.op


def _fractional_max_pool(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The values, and where they are in the image if that is read."""
    x, samples = importer.arg(node, 0, "self"), importer.arg(node, 3, "random_samples")
    shape, kernel, counts = list(dims(x)), list(node.args[1]), list(node.args[2])
    extents = shape[-space:]
    if not all(isinstance(size, int) for size in shape):
        raise ImportModelError(f"fractional pooling of {tuple(shape)}; expected sizes that are known now")
    lead = shape[:-space] if len(shape) == space + 2 else [1, *shape[:-space]]
    x = importer.emit(op.reshape(x, [*lead, *extents]))
    spread = [size * count for size, count in zip(kernel, counts, strict=True)]  # windows side by side
    rows: list[relax.Expr] = []  # by axis, the rows of each window: (batch, channels, count * kernel)
    for axis, sizes in enumerate(zip(extents, kernel, counts, strict=True)):
        drawn = space - 1 - axis if space == 2 else axis  # torch draws the one of the width first, or that of the depth
        sample = importer.emit(op.strided_slice(samples, [2], [drawn], [drawn + 1], assume_inbound=True))
        starts = importer.emit(op.expand_dims(_starts(importer, sample, *sizes), -1))
        places = importer.emit(op.add(starts, relax.const(np.arange(sizes[1]), "int64")))
        rows.append(importer.emit(op.reshape(places, [*lead, spread[axis]])))
        whole = [*lead, *spread[: axis + 1], *extents[axis + 1 :]]
        index = importer.emit(op.reshape(rows[-1], _only(axis, whole)))
        x = importer.emit(op.gather_elements(x, importer.emit(op.broadcast_to(index, whole)), 2 + axis))
    pairs = [size for pair in zip(counts, kernel, strict=True) for size in pair]
    order = [0, 1, *range(2, 2 + 2 * space, 2), *range(3, 3 + 2 * space, 2)]

    def windows(values: relax.Expr) -> relax.Expr:
        """(batch, channels, counts, elements of a window)."""
        apart = importer.emit(op.permute_dims(op.reshape(values, [*lead, *pairs]), order))
        return importer.emit(op.reshape(apart, [*lead, *counts, math.prod(kernel)]))

    x = windows(x)
    results = [importer.emit(op.max(x, -1))]
    if 1 in results_read(node):
        places = relax.const(0, "int64")
        for axis, values in enumerate(rows):  # counted through the image
            step = relax.const(math.prod(extents[axis + 1 :]), "int64")
            along = _only(axis, [*lead, *spread])
            places = importer.emit(op.add(places, op.multiply(op.reshape(values, along), step)))
        best = importer.emit(op.argmax(x, -1, True))
        results.append(importer.emit(op.squeeze(op.gather_elements(windows(places), best, -1), [-1])))
    return [importer.emit(op.reshape(result, [*shape[:-space], *counts])) for result in results]


def _only(axis: int, shape: list[int]) -> list[int]:
    """The batch, the channels and one axis of a shape; the others are 1."""
    return [size if at in (0, 1, 2 + axis) else 1 for at, size in enumerate(shape)]


def _starts(importer: Importer, sample: relax.Expr, extent: int, kernel: int, count: int) -> relax.Expr:
    """Where the windows along an axis begin, (batch, channels, count) of int64; the last one ends with the image."""
    dtype = str(dtype_of(sample))
    last = importer.emit(op.full(dims(sample), relax.const(extent - kernel, "int64"), "int64"))
    if count == 1:
        return last
    step = relax.const(np.array(extent - kernel, dtype) / np.array(count - 1, dtype), dtype)
    moved = op.multiply(op.add(relax.const(np.arange(count - 1), dtype), sample), step)
    first = importer.emit(op.astype(op.multiply(sample, step), "int64"))
    starts = importer.emit(op.subtract(op.astype(moved, "int64"), first))
    return importer.emit(op.concat([starts, last], axis=-1))


#: Converters by the name of the overload.
FRACTIONAL_POOLING: dict[str, Converter] = {
    "fractional_max_pool2d.default": partial(_fractional_max_pool, space=2),
    "fractional_max_pool3d.default": partial(_fractional_max_pool, space=3),
}
