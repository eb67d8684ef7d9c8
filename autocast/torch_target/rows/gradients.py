"""Backward operators that torch has; the others are expanded to what they are short for."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import dtype_of
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype
from autocast.torch_target.attention import fused_adjoints
from autocast.torch_target.rows.products import padded

aten: Any = torch.ops.aten


def _of_input(function: Any) -> Row:
    """g times the slope at x, which torch takes in the other order."""
    return lambda asked: asked.stored(function(asked.wide(1), asked.wide(0)))


def _weights(asked: Asked) -> Value:
    """The adjoint of a convolution's weight."""
    x, weight, g = (asked.wide(i) if asked.exact else asked.args[i] for i in range(3))
    if not asked.exact and asked.is_low(0) != asked.is_low(1):  # only its shape is read, but torch compares dtypes
        weight = weight.to(torch_dtype(str(asked.call.args[0].ty.dtype)))
    rank = asked.rank(1) - 2
    x, padding = padded(x, asked.integers("padding"))
    strides, dilation = asked.integers("strides"), asked.integers("dilation")
    common = (None, strides, padding, dilation, False, [0] * rank, int(asked.attrs.groups))
    gradients = aten.convolution_backward(g, x, weight, *common, [False, True, False])
    return gradients[1].to(asked.dtype)


def _attention(asked: Asked) -> Value:
    scale = None if asked.attrs.scale is None else float(asked.attrs.scale)
    query, key, value, g = asked.args
    return fused_adjoints(query, key, value, g, asked.attrs.causal_mask is not None, scale)


def is_fused(call: relax.Call) -> bool:
    """Whether torch's kernels compute these adjoints of attention: those of a bias they do not."""
    is_plain = len(call.args) == 4 and call.attrs.causal_mask in (None, "TopLeft") and call.attrs.window_size is None
    return is_plain and len({dtype_of(operand) for operand in call.args}) == 1


def _max_pool(asked: Asked) -> Value:
    """The adjoint goes to the first of the largest of its window, as in torch."""
    g, x = asked.wide(0), asked.wide(1)
    x, padding = padded(x, asked.integers("padding"), float("-inf"))
    names = ("pool_size", "strides", "dilation")
    size, strides, dilation = (asked.integers(name) for name in names)
    window = (size, strides, padding, dilation, bool(asked.attrs.ceil_mode))
    places = aten.max_pool2d_with_indices(x, *window)[1]
    return asked.stored(_inside(asked, aten.max_pool2d_with_indices_backward(g, x, *window, places)))


def _avg_pool(asked: Asked) -> Value:
    g, x = asked.wide(0), asked.wide(1)
    widths = asked.integers("padding")
    rank = len(widths) // 2
    if widths[:rank] != widths[rank:] and not asked.attrs.count_include_pad:
        raise UnsupportedError(
            f"to_torch: {asked.name} has padding {list(widths)} that differs by sides and does not count; expected the "
            "same on both sides, or count_include_pad=True"
        )
    x, padding = padded(x, widths)
    ceil, counted = bool(asked.attrs.ceil_mode), bool(asked.attrs.count_include_pad)
    window = (asked.integers("pool_size"), asked.integers("strides"), padding, ceil, counted, None)
    return asked.stored(_inside(asked, aten.avg_pool2d_backward(g, x, *window)))


def _nll_loss(asked: Asked) -> Value:
    """-weight where an element is the one that its target names, over the sum of weights where that was divided by."""
    g, targets, axis = asked.wide(0), asked.args[2].to(torch.int64), 1 if asked.rank(1) > 1 else 0
    classes = asked.shape_of(1)[axis]
    valid = targets != int(asked.attrs.ignore_index)
    places = torch.where(valid, targets, 0)
    factors = valid.to(torch.float32)
    if len(asked.args) > 3:
        factors = torch.take(asked.args[3], places) * factors
    if str(asked.attrs.reduction) == "mean":
        g = g / torch.sum(factors)
    hot = torch.movedim(places[..., None] == torch.arange(classes), -1, axis)
    return torch.where(hot, torch.unsqueeze(-g * factors, axis), 0.0).to(asked.dtype)


def _inside(asked: Asked, gradient: Value) -> Value:
    """The adjoint of the data, from that of the data with the padding that torch does not add itself."""
    widths = asked.integers("padding")
    rank = len(widths) // 2
    if widths[:rank] == widths[rank:]:
        return gradient
    for axis in range(rank):
        gradient = torch.narrow(gradient, 2 + axis, widths[axis], asked.shape_of(1)[2 + axis])
    return gradient


ROWS: dict[str, Row] = {
    "grad.gelu_backward": _of_input(aten.gelu_backward),
    "grad.gelu_tanh_backward": lambda asked: asked.stored(
        aten.gelu_backward(asked.wide(1), asked.wide(0), approximate="tanh")
    ),
    "grad.silu_backward": _of_input(aten.silu_backward),
    "grad.sigmoid_backward": _of_input(aten.sigmoid_backward),
    "grad.tanh_backward": _of_input(aten.tanh_backward),
    "grad.attention_backward": _attention,
    "grad.nll_loss_backward": _nll_loss,
    "grad.max_pool2d_backward": _max_pool,
    "grad.avg_pool2d_backward": _avg_pool,
    **{f"grad.conv{rank}d_weight_backward": _weights for rank in (1, 2, 3)},
}
