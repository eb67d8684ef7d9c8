"""Operators that multiply and add: products, convolutions and attention, with their operations."""

from __future__ import annotations

from math import prod

from tvm import relax

from autocast.operators.row import Kind, rows

_Shapes = list[tuple[int, ...]]


def _matmul(call: relax.Call, args: _Shapes, result: tuple[int, ...]) -> int:
    return 2 * prod(result) * args[0][-1]


def _attention(call: relax.Call, args: _Shapes, result: tuple[int, ...]) -> int:
    batch, queries, heads, width = args[0]  # (batch, sequence, heads, width of a head)
    keys, value_width = args[1][1], args[2][3]
    return 2 * batch * heads * queries * keys * (width + value_width)


def _convolution(call: relax.Call, args: _Shapes, result: tuple[int, ...]) -> int:
    layout = str(call.attrs.kernel_layout)
    return 2 * prod(result) * prod(args[1]) // args[1][layout.index("O")]


def _transposed_convolution(call: relax.Call, args: _Shapes, result: tuple[int, ...]) -> int:
    layout = str(call.attrs.kernel_layout)
    return 2 * prod(args[0]) * prod(args[1]) // args[1][layout.index("I")]


ROWS = (
    *rows(Kind.PRODUCT, "matmul", of_nothing=0.0, flops=_matmul),
    *rows(Kind.PRODUCT, "nn.grouped_matmul", of_nothing=0.0, flops=_matmul),
    *rows(Kind.SHORTHAND, "einsum", of_nothing=0.0),
    *rows(Kind.SHORTHAND, "outer"),
    *rows(Kind.CONVOLUTION, "nn.conv1d nn.conv2d", channels_last="convolution", of_nothing=0.0, flops=_convolution),
    *rows(
        Kind.CONVOLUTION,
        "nn.conv1d_transpose nn.conv2d_transpose",
        channels_last="transposed convolution",
        of_nothing=0.0,
        flops=_transposed_convolution,
    ),
    *rows(Kind.CONVOLUTION, "nn.conv3d", of_nothing=0.0, flops=_convolution),
    *rows(Kind.CONVOLUTION, "nn.conv3d_transpose", of_nothing=0.0, flops=_transposed_convolution),
    *rows(Kind.ATTENTION, "nn.attention nn.attention_bias", of_nothing=0.0, flops=_attention),
    *rows(Kind.ATTENTION, "nn.attention_var_len"),
    *rows(
        Kind.CONVOLUTION_GRADIENT,
        "grad.conv1d_weight_backward grad.conv2d_weight_backward",
        channels_last="weight gradient",
        of_nothing=0.0,
    ),
    *rows(Kind.CONVOLUTION_GRADIENT, "grad.conv3d_weight_backward", of_nothing=0.0),
)
