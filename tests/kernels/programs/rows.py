"""Steps that combine elements along axes: reductions, softmax, norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tvm import relax

from autocast.ir import shape_of
from tests.kernels.programs.writer import Writer

op = relax.op


def reduction(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1)
    rank = writer.values[i].ndim
    axes = sorted(writer.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)))
    keep = writer.draw(st.booleans()) or (writer.varying and 0 in axes)
    table = {
        "sum": (op.sum, torch.sum),
        "mean": (op.mean, torch.mean),
        "variance": (op.variance, lambda x, dim, keepdim: x.var(dim, correction=0, keepdim=keepdim)),
    }
    if not writer.differentiable:
        table |= {"max": (op.max, torch.amax), "min": (op.min, torch.amin)}
    name = writer.one_of(table)
    made, reference = table[name]
    writer.add(name, (i,), lambda x: made(x, axes, keep), lambda x: reference(x, dim=axes, keepdim=keep))


def repeated(writer: Writer) -> None:
    """A number of each row, in the place of all of its elements."""
    i = writer.pick(lambda x: x.ndim >= 1 and x.numel() > 0)
    writer.add(
        "repeated mean",
        (i,),
        lambda x: op.broadcast_to(op.mean(x, [-1], keepdims=True), relax.ShapeExpr(shape_of(x))),
        lambda x: x.mean(-1, keepdim=True).expand(x.shape),
    )


def row(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1 and x.numel() > 0)
    axis = writer.axis(i)
    name = writer.one_of(["softmax", "log_softmax", "cumsum"])
    made = {"softmax": op.nn.softmax, "log_softmax": op.nn.log_softmax, "cumsum": op.cumsum}[name]
    writer.add(name, (i,), lambda x: made(x, axis), lambda x: getattr(torch, name)(x, axis))


def norm(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 1)
    gamma, beta = (
        writer.same_dtype(i, writer.parameter(lambda p: p.shape == writer.values[i].shape[-1:])) for _ in range(2)
    )
    if writer.draw(st.booleans()):
        writer.add(
            "layer_norm",
            (i, gamma, beta),
            lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-2),
            lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-2),
        )
    else:
        writer.add(
            "rms_norm",
            (i, gamma),
            lambda x, g: op.nn.rms_norm(x, g, [-1], 1e-2),
            lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-2),
        )
