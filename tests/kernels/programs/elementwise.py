"""Steps that compute each element by itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.programs.writer import Writer

op = relax.op


def unary(writer: Writer) -> None:
    """A function of one argument."""
    i = writer.pick()
    smooth = {
        "tanh": (op.tanh, torch.tanh),
        "sigmoid": (op.sigmoid, torch.sigmoid),
        "gelu": (op.nn.gelu, F.gelu),
        "gelu_tanh": (op.nn.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
        "silu": (op.nn.silu, F.silu),
        "negative": (op.negative, torch.neg),
        "sin": (op.sin, torch.sin),
        "erf": (op.erf, torch.erf),
    }
    kinked = {"relu": (op.nn.relu, F.relu), "abs": (op.abs, torch.abs)}
    if float(writer.values[i].abs().max()) < 4:
        smooth |= {"exp": (op.exp, torch.exp), "square": (op.square, torch.square)}
        smooth |= {"softplus": (op.nn.softplus, F.softplus)}
    table = smooth if writer.differentiable else {**smooth, **kinked}
    name = writer.one_of(table)
    writer.add(name, (i,), *table[name])


def scalar(writer: Writer) -> None:
    """Arithmetic with a constant."""
    i = writer.pick()
    number, dtype = writer.one_of([0.5, 2.0, -0.125, 1.0, 3.0]), writer.dtypes[i]
    name = writer.one_of(["add", "multiply", "divide", "subtract"])
    writer.add(
        name,
        (i,),
        lambda x: getattr(op, name)(x, relax.const(number, dtype)),
        lambda x: getattr(torch, name)(x, number),
    )


def binary(writer: Writer) -> None:
    """Arithmetic with another value, which may be broadcast."""
    i = writer.pick()
    shape = tuple(writer.values[i].shape)

    def broadcasts(other: torch.Tensor) -> bool:
        if writer.varying and other.ndim == len(shape) and other.shape[:1] != shape[:1]:
            return False
        try:
            return torch.broadcast_shapes(shape, tuple(other.shape)) is not None
        except RuntimeError:
            return False

    j = writer.same_dtype(i, writer.pick(broadcasts))
    names = ["add", "subtract", "multiply"] + ([] if writer.differentiable else ["maximum", "minimum"])
    name = writer.one_of(names)
    pair = (i, j) if writer.draw(st.booleans()) else (j, i)
    writer.add(name, pair, getattr(op, name), getattr(torch, name))


def with_parameter(writer: Writer) -> None:
    """A vector along the last axis, as a bias or a factor."""
    i = writer.pick(lambda x: x.ndim >= 1)
    j = writer.same_dtype(i, writer.parameter(lambda p: p.shape == writer.values[i].shape[-1:]))
    name = writer.one_of(["add", "multiply"])
    writer.add(name, (i, j), getattr(op, name), getattr(torch, name))


def where(writer: Writer) -> None:
    """A constant mask along the last axis."""
    i = writer.pick(lambda x: x.ndim >= 1 and x.shape[-1] > 1)
    length, number = writer.values[i].shape[-1], writer.one_of([0.0, -3.0])
    mask = torch.tensor(writer.draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    dtype = writer.dtypes[i]
    writer.add(
        "where",
        (i,),
        lambda x: op.where(relax.const(mask.numpy(), "bool"), x, relax.const(number, dtype)),
        lambda x: torch.where(mask, x, torch.tensor(number, dtype=x.dtype)),
        moves=True,
    )


def round_trip(writer: Writer) -> None:
    """A cast to the low dtype and back."""
    i = writer.pick()
    writer.cast(writer.cast(i, writer.low), "float32")
