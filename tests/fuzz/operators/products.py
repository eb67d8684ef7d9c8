"""Products of matrices, attention, convolutions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.normalization import softmax
from tests.fuzz.operators.reductions import scaled, stored, wide
from tests.fuzz.operators.registry import dtype_of, integers, operator
from tests.fuzz.values import Tensor, elementwise, linear


@operator("relax.matmul")
def _matmul(call: relax.Call, x: Tensor, y: Tensor) -> Tensor:
    return linear(np.matmul, x.shape[-1], x, y, dtype=dtype_of(call))


@operator("relax.nn.grouped_matmul")
def _grouped_matmul(call: relax.Call, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    groups = (ends.value[:, None] <= np.arange(x.shape[0])).sum(0)

    def product(rows: np.ndarray, matrices: np.ndarray) -> np.ndarray:
        result = np.zeros((rows.shape[0], matrices.shape[2]), rows.dtype)
        for row, group in enumerate(groups):
            if group < matrices.shape[0]:
                result[row] = rows[row] @ matrices[group]
        return result

    return linear(product, x.shape[-1], x, weight, dtype=dtype_of(call))


@operator("relax.einsum")
def _einsum(call: relax.Call, operands: tuple[Tensor, ...]) -> Tensor:
    subscripts = str(call.attrs.subscripts)
    terms = max(1, math.prod(max(x.shape, default=1) for x in operands))
    return linear(lambda *a: np.einsum(subscripts, *a), terms, *operands, dtype=dtype_of(call))


def attention_scores(call: relax.Call, q: Tensor, k: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """What softmax takes, of (batch, heads, queries, keys); where a query may not see a key, next to nothing."""
    scores = linear(lambda a, b: np.einsum("bqhd,bkhd->bhqk", a, b), q.shape[-1], q, k)
    scores = scaled(scores, scale)
    if bias is not None:
        scores = elementwise(np.add, scores, wide(bias)).rounded(None)
    causal = call.attrs.causal_mask
    if causal is not None:
        offset = abs(q.shape[1] - k.shape[1]) if str(causal) == "BottomRight" else 0
        keep = np.tril(np.ones(scores.shape, bool), offset)
        scores = Tensor(np.where(keep, scores.value, -1e30), np.where(keep, scores.error, 0), scores.dtype)
    return scores


@operator("relax.nn.attention", "relax.nn.attention_bias")
def _attention(call: relax.Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if call.attrs.scale is None else float(call.attrs.scale)
    weights = softmax(attention_scores(call, wide(q), wide(k), scale, bias), -1)
    # Weights may be rounded as the operands are.
    weights = weights.rounded(None if q.dtype == "float32" else q.dtype)
    result = linear(lambda a, b: np.einsum("bhqk,bkhd->bqhd", a, b), k.shape[1], weights, wide(v))
    return stored(result, dtype_of(call))


def reorder(layout: str, wanted: str) -> tuple[int, ...]:
    """The axes of an array in `layout`, in the order `wanted`."""
    return tuple(layout.index(axis) for axis in wanted)


def spatial(layout: str) -> str:
    """The letters of a layout that are neither batch nor channels."""
    return "".join(letter for letter in "DHW" if letter in layout)


def _convolve(x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, dilation: Any, groups: int) -> np.ndarray:
    """A convolution; batch and channels first."""
    n = len(strides)
    x = np.pad(x, [(0, 0), (0, 0), *zip(padding[:n], padding[n:], strict=True)])
    sizes = [(x.shape[2 + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    result = np.zeros((x.shape[0], groups, w.shape[0] // groups, *sizes))
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for tap in itertools.product(*map(range, w.shape[2:])):
        cut = tuple(
            slice(tap[i] * dilation[i], tap[i] * dilation[i] + strides[i] * (sizes[i] - 1) + 1, strides[i])
            for i in range(n)
        )
        if not all(sizes):
            continue
        part = x[(slice(None), slice(None), *cut)]
        part = part.reshape(x.shape[0], groups, x.shape[1] // groups, *sizes)
        result += np.einsum("bgc...,goc->bgo...", part, weights[(slice(None), slice(None), slice(None), *tap)])
    return result.reshape(x.shape[0], w.shape[0], *sizes)


@operator("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
def _conv(call: relax.Call, x: Tensor, w: Tensor) -> Tensor:
    attrs = call.attrs
    data, kernel, out = (str(layout) for layout in (attrs.data_layout, attrs.kernel_layout, attrs.out_layout))
    axes = spatial(data)
    first, weights = reorder(data, "NC" + axes), reorder(kernel, "OI" + axes)
    arguments = integers(attrs.strides), integers(attrs.padding), integers(attrs.dilation), int(attrs.groups)
    back = reorder("NC" + axes, out)

    def convolve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _convolve(a.transpose(first), b.transpose(weights), *arguments).transpose(back)

    terms = w.value.size // max(w.shape[kernel.index("O")], 1)
    return linear(convolve, terms, x, w, dtype=dtype_of(call))


@operator(*(f"relax.grad.conv{n}d_weight_backward" for n in (1, 2, 3)))
def _conv_weight(call: relax.Call, x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """Of the layout NCHW: for each tap, products of the adjoint and the data that the tap sees."""
    attrs, n = call.attrs, w.value.ndim - 2
    strides, dilation, groups = integers(attrs.strides), integers(attrs.dilation), int(attrs.groups)
    padding = integers(attrs.padding)

    def adjoint(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = np.pad(a, [(0, 0), (0, 0), *zip(padding[:n], padding[n:], strict=True)])
        extents, images = b.shape[2:], a.shape[0]
        b = b.reshape(images, groups, w.shape[0] // groups, math.prod(extents))
        result = np.zeros((groups, b.shape[2], w.shape[1], *w.shape[2:]))
        for tap in itertools.product(*map(range, w.shape[2:])):
            first = [place * step for place, step in zip(tap, dilation, strict=True)]
            ends = (at + (size - 1) * step + 1 for at, size, step in zip(first, extents, strides, strict=True))
            cut = tuple(slice(at, end, step) for at, end, step in zip(first, ends, strides, strict=True))
            seen = a[(slice(None), slice(None), *cut)].reshape(images, groups, w.shape[1], b.shape[3])
            result[(slice(None), slice(None), slice(None), *tap)] = np.einsum("bgop,bgcp->goc", b, seen)
        return result.reshape(w.shape)

    terms = g.value.size // max(g.shape[1], 1)
    return linear(adjoint, terms, x, g, dtype=dtype_of(call))


def _transposed(
    x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, dilation: Any, groups: int, extra: Any
) -> np.ndarray:
    """A transposed convolution; batch and channels first, the weight's input channels first."""
    n = len(strides)
    sizes = [(x.shape[2 + i] - 1) * strides[i] + dilation[i] * (w.shape[2 + i] - 1) + 1 for i in range(n)]
    outputs = w.shape[1]
    result = np.zeros((x.shape[0], groups, outputs, *[size + extra[i] for i, size in enumerate(sizes)]))
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for tap in itertools.product(*map(range, w.shape[2:])):
        at = tuple(
            slice(tap[i] * dilation[i], tap[i] * dilation[i] + strides[i] * (x.shape[2 + i] - 1) + 1, strides[i])
            for i in range(n)
        )
        term = np.einsum("bgc...,gco->bgo...", parts, weights[(slice(None), slice(None), slice(None), *tap)])
        result[(slice(None), slice(None), slice(None), *at)] += term
    result = result.reshape(x.shape[0], groups * outputs, *result.shape[3:])
    cut = tuple(slice(padding[i], result.shape[2 + i] - padding[n + i]) for i in range(n))
    return result[(slice(None), slice(None), *cut)]


@operator("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose")
def _conv_transpose(call: relax.Call, x: Tensor, w: Tensor) -> Tensor:
    attrs = call.attrs
    data, kernel, out = (str(layout) for layout in (attrs.data_layout, attrs.kernel_layout, attrs.out_layout))
    axes = spatial(data)
    first, weights = reorder(data, "NC" + axes), reorder(kernel, "IO" + axes)
    arguments = integers(attrs.strides), integers(attrs.padding), integers(attrs.dilation), int(attrs.groups)
    extra, back = integers(attrs.output_padding), reorder("NC" + axes, out)

    def convolve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _transposed(a.transpose(first), b.transpose(weights), *arguments, extra).transpose(back)

    return linear(convolve, max(w.value.size, 1), x, w, dtype=dtype_of(call))
