"""Steps that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from tvm import relax

from autocast.ir import shape_of
from tests.kernels.programs.writer import NothingFits, Writer

op = relax.op


def permute(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 2)
    axes = list(writer.draw(st.permutations(range(writer.values[i].ndim))))
    if writer.varying and axes[0] != 0:
        axes = [0, *[axis for axis in axes if axis != 0]]
    writer.add("permute", (i,), lambda x: op.permute_dims(x, axes), lambda x: x.permute(axes), moves=True)


def reshape(writer: Writer) -> None:
    i = writer.pick()
    rank = writer.values[i].ndim
    kind = writer.one_of(["expand", "merge", "squeeze"])
    if kind == "expand" and rank < 4:
        axis = writer.draw(st.integers(1 if writer.varying else 0, rank))
        writer.add("expand", (i,), lambda x: op.expand_dims(x, axis), lambda x: x.unsqueeze(axis), moves=True)
    elif kind == "merge" and rank >= 3:
        axis = writer.draw(st.integers(1 if writer.varying else 0, rank - 2))

        def merged(shape: Sequence) -> list:
            return [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]

        writer.add(
            "merge",
            (i,),
            lambda x: op.reshape(x, merged(shape_of(x))),
            lambda x: x.reshape(merged(x.shape)),
            moves=True,
        )
    else:
        ones = [a for a, size in enumerate(writer.values[i].shape) if size == 1 and (a or not writer.varying)]
        if not ones:
            raise NothingFits
        axis = writer.one_of(ones)
        writer.add("squeeze", (i,), lambda x: op.squeeze(x, [axis]), lambda x: x.squeeze(axis), moves=True)


def concat(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1 and x.numel() < 5000)
    axis = writer.known_axis(i)
    shape = list(writer.values[i].shape)

    def fits(other: torch.Tensor) -> bool:
        return other.ndim == len(shape) and all(
            a == b for k, (a, b) in enumerate(zip(other.shape, shape, strict=True)) if k != axis
        )

    j = writer.same_dtype(i, writer.pick(fits))
    writer.add("concat", (i, j), lambda x, y: op.concat([x, y], axis), lambda x, y: torch.cat([x, y], axis), moves=True)


def strided_slice(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1)
    axis = writer.known_axis(i)
    size = writer.values[i].shape[axis]
    first = writer.draw(st.integers(0, size - 1))
    last = writer.draw(st.integers(first + 1, size))
    stride = writer.one_of([1, 1, 2])
    index = (slice(None),) * axis + (slice(first, last, stride),)
    writer.add(
        "slice",
        (i,),
        lambda x: op.strided_slice(x, [axis], [first], [last], [stride]),
        lambda x: x[index],
        moves=True,
    )


def split(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1)
    axis = writer.known_axis(i)
    size = writer.values[i].shape[axis]
    if size < 2:
        raise NothingFits
    at = writer.draw(st.integers(1, size - 1))
    part = writer.one_of([0, 1])
    writer.add(
        "split",
        (i,),
        lambda x: relax.TupleGetItem(op.split(x, [at], axis), part),
        lambda x: x.tensor_split([at], axis)[part],
        moves=True,
    )


def take(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1)
    axis = writer.known_axis(i)
    size = writer.values[i].shape[axis]
    numbers = writer.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9))
    index = torch.tensor(numbers)
    writer.add(
        "take",
        (i,),
        lambda x: op.take(x, relax.const(index.numpy(), "int64"), axis),
        lambda x: x.index_select(axis, index),
        moves=True,
    )
