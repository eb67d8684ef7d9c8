"""Steps that multiply matrices or slide a window over an image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.programs.writer import Writer

op = relax.op


def matmul(writer: Writer) -> None:
    i = writer.pick(lambda x: x.ndim >= 2)
    j = writer.same_dtype(i, writer.parameter(lambda p: p.ndim == 2 and writer.values[i].shape[-1] in p.shape))
    if writer.values[j].shape[0] != writer.values[i].shape[-1]:
        writer.add("matmul", (i, j), lambda x, w: op.matmul(x, op.permute_dims(w)), lambda x, w: x @ w.T)
    else:
        writer.add("matmul", (i, j), op.matmul, torch.matmul)


def attention(writer: Writer) -> None:
    """Scores of a tensor with itself, and their softmax, scaled."""
    i = writer.pick(lambda x: x.ndim >= 2)
    order = [*range(writer.values[i].ndim - 2), -1, -2]
    positive = [axis % writer.values[i].ndim for axis in order]
    scores = writer.add(
        "scores",
        (i, i),
        lambda x, y: op.matmul(x, op.permute_dims(y, positive)),
        lambda x, y: x @ y.transpose(-1, -2),
    )
    if writer.draw(st.booleans()):
        scale = writer.one_of([0.25, 0.5])
        scores = writer.add(
            "scale",
            (scores,),
            lambda x: op.multiply(x, relax.const(scale, writer.dtypes[i])),
            lambda x: x * scale,
        )
    softmax = writer.add("softmax", (scores,), lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1))
    writer.add("weighted", (softmax, i), op.matmul, torch.matmul)


def image(writer: Writer) -> None:
    """A convolution or a pooling of a tensor of four dimensions."""
    i = writer.pick(lambda x: x.ndim == 4 and min(x.shape[2:]) >= 2)
    channels = writer.values[i].shape[1]
    height, width = writer.values[i].shape[2:]
    most = min(height, width) + 2
    weights = writer.parameters(lambda p: p.ndim == 4 and p.shape[1] == channels and p.shape[2] <= most)
    if weights and writer.draw(st.booleans()):
        j = writer.same_dtype(i, writer.one_of(weights))
        stride = writer.one_of([1, 2])
        writer.add(
            "conv2d",
            (i, j),
            lambda x, w: op.nn.conv2d(x, w, strides=stride, padding=1),
            lambda x, w: F.conv2d(x, w, stride=stride, padding=1),
        )
    elif writer.differentiable or writer.draw(st.booleans()):
        writer.add("avg_pool2d", (i,), lambda x: op.nn.avg_pool2d(x, (2, 2), (1, 1)), lambda x: F.avg_pool2d(x, 2, 1))
    else:
        writer.add("max_pool2d", (i,), lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2)), lambda x: F.max_pool2d(x, 2, 2))
