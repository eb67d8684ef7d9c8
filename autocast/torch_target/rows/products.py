"""Products of matrices, attention, convolutions. Torch, too, adds products of 16 bits in float32, but not always."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from autocast.operators.own.attention import check_no_window
from autocast.torch_target.asked import Asked, Row, Value
from autocast.torch_target.layouts import channels_first, spatial, to_layout


def _matmul(asked: Asked) -> Value:
    if asked.dtype is torch.bool:
        x, y = (operand.to(torch.int32) for operand in asked.args)
        return torch.matmul(x, y).to(torch.bool)
    return _widened(asked, torch.matmul(*_operands(asked)))


def _is_wider(asked: Asked) -> bool:
    """Whether the result is in a wider dtype than the operands, which torch has no products for on CPUs."""
    return bool(asked.call.args[0].ty.dtype != asked.call.ty.dtype)


def _operands(asked: Asked) -> tuple[Value, ...]:
    """What is multiplied: torch answers in the dtype of its operands, so they are widened if the result is."""
    return tuple(x.to(asked.dtype) for x in asked.args) if _is_wider(asked) and asked.exact else asked.args


def _widened(asked: Asked, result: Value) -> Value:
    """The result in its dtype, where the operands were not widened for that."""
    return result.to(asked.dtype) if _is_wider(asked) and not asked.exact else result


def _grouped_matmul(asked: Asked) -> Value:
    """Every row times every matrix, of which one is kept: torch exports no product of groups in each dtype."""
    (x, weight), ends = asked.args[:2], asked.args[2]
    group = (ends[:, None] <= torch.arange(asked.shape_of(0)[0])).sum(0)
    inside = (group == torch.arange(asked.shape_of(1)[0])[:, None])[:, :, None]
    products = torch.matmul(x[None], weight)
    return torch.where(inside, products, torch.zeros((), dtype=products.dtype)).sum(0)


def _einsum(asked: Asked) -> Value:
    return torch.einsum(str(asked.attrs.subscripts), *asked.args[0])


def _outer(asked: Asked) -> Value:
    return torch.outer(*asked.args)


#: Added to a number below, scores are lost in float32, one step of which is 8 there.
_LOSES_SCORES = -1e8


def _narrowed(query: Value, bias: Value, limits: torch.finfo) -> tuple[Value, Value]:
    """A query and its float32 bias for attention in a dtype with these limits.

    A row of the lowest numbers of float32 has equal weights there, and one of -inf none.
    """
    dtype = getattr(torch, limits.dtype)
    if limits.min > _LOSES_SCORES:  # float16, whose lowest number leaves scores as they are
        wide = torch.finfo(torch.float32)
        top = torch.clamp(torch.amax(bias, -1, keepdim=True), wide.min, wide.max)
        query = torch.where(top < _LOSES_SCORES, torch.zeros((), dtype=dtype), query)
        bias = bias - top
    return query, torch.where(torch.isinf(bias), bias, torch.clamp(bias, limits.min, limits.max)).to(dtype)


def _attention(asked: Asked) -> Value:
    """Of (batch, length, heads, width)."""
    check_no_window(asked.call)
    query, key, value = (torch.transpose(x, 1, 2) for x in asked.args[:3])
    bias = asked.args[3] if len(asked.args) > 3 else None
    if bias is not None and asked.call.args[3].ty.dtype != asked.call.args[0].ty.dtype:
        query, bias = _narrowed(query, bias, torch.finfo(asked.dtype))
    if bias is not None:
        *lead, rows, keys = asked.shape_of(3)
        if isinstance(rows, int) and rows == 1:  # for all queries, of which ONNX's Attention knows nothing
            bias = bias.expand(*lead, asked.shape_of(0)[1], keys)
    scale = None if asked.attrs.scale is None else float(asked.attrs.scale)
    causal = asked.attrs.causal_mask
    if causal is not None and (str(causal) == "BottomRight" or bias is not None):
        allowed = _causal(asked, str(causal))
        hidden = torch.full((), float("-inf"), dtype=asked.dtype)
        bias = torch.where(allowed, torch.zeros((), dtype=asked.dtype) if bias is None else bias, hidden)
        causal = None
    result = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=causal is not None, scale=scale
    )
    return torch.transpose(result, 1, 2)


def _causal(asked: Asked, kind: str) -> Value:
    queries, keys = asked.shape_of(0)[1], asked.shape_of(1)[1]
    offset = abs(keys - queries) if kind == "BottomRight" else 0
    return torch.arange(queries)[:, None] + offset >= torch.arange(keys)[None, :]


def _convolution(asked: Asked) -> Value:
    if any(isinstance(size, int) and size == 0 for size in (*asked.shape_of(0), *asked.shape_of(1), *asked.shape)):
        return torch.zeros(asked.shape, dtype=asked.dtype)  # torch refuses most of them, and forgets features
    attrs, (x, weight) = asked.attrs, _operands(asked)
    axes = spatial(str(attrs.data_layout))
    x = channels_first(x, str(attrs.data_layout))
    weight = to_layout(weight, str(attrs.kernel_layout), f"OI{axes}")
    x, padding = padded(x, asked.integers("padding"))
    function: Any = getattr(F, f"conv{len(axes)}d")
    strides, dilation = asked.integers("strides"), asked.integers("dilation")
    result = function(x, weight, None, strides, padding, dilation, int(attrs.groups))
    return _widened(asked, to_layout(result, f"NC{axes}", str(attrs.out_layout)))


def padded(x: Value, widths: tuple[int, ...], value: float = 0.0) -> tuple[Value, tuple[int, ...]]:
    """The data, and the padding that torch adds itself: the same on both sides."""
    before, after = widths[: len(widths) // 2], widths[len(widths) // 2 :]
    if before == after:
        return x, before
    pairs = zip(reversed(before), reversed(after), strict=True)
    return F.pad(x, [width for pair in pairs for width in pair], value=value), (0,) * len(before)


def _transposed_convolution(asked: Asked) -> Value:
    attrs, (x, weight) = asked.attrs, _operands(asked)
    if asked.exact and not _is_wider(asked):  # torch's for CPUs add in 16 bits
        x, weight = asked.wide(0), asked.wide(1)
    axes = spatial(str(attrs.data_layout))
    x = channels_first(x, str(attrs.data_layout))
    weight = to_layout(weight, str(attrs.kernel_layout), f"IO{axes}")
    widths, rank = asked.integers("padding"), len(axes)
    function: Any = getattr(F, f"conv_transpose{rank}d")
    extra = asked.integers("output_padding")
    common = {"stride": asked.integers("strides"), "groups": int(attrs.groups), "dilation": asked.integers("dilation")}
    if widths[:rank] == widths[rank:]:
        result = function(x, weight, None, padding=widths[:rank], output_padding=extra, **common)
    else:
        result = function(x, weight, None, output_padding=extra, **common)
        for axis in range(rank):
            length = result.size(2 + axis) - widths[axis] - widths[rank + axis]
            result = torch.narrow(result, 2 + axis, widths[axis], length)
    result = to_layout(result, f"NC{axes}", str(attrs.out_layout))
    return _widened(asked, asked.stored(result) if asked.exact else result)


ROWS: dict[str, Row] = {
    "matmul": _matmul,
    "nn.grouped_matmul": _grouped_matmul,
    "einsum": _einsum,
    "outer": _outer,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    **{f"nn.conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"nn.conv{rank}d_transpose": _transposed_convolution for rank in (1, 2, 3)},
}
