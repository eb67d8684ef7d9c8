"""What a cast costs, and what a flexible operator moves in each precision: the weights of the cut problem.

`objective="casts"` counts every cast as 1. `objective="bytes"` asks the tables below what a cast moves: a tensor read
and another written where the cast is a kernel of its own, next to nothing where the kernel before it narrows what it
stores, or every kernel after it converts what it loads. Not nothing: such a cast still rounds, or keeps a tensor wide.
Among choices whose casts cost the same, the one is taken whose flexible operators move the fewest bytes. The order
matters: traffic is never traded for a cast, because that would round float32 tensors (a residual stream, say) which no
low-precision operator asks for.
"""

from __future__ import annotations

_WIDE, _NARROW = 4, 2

#: Bytes for each element of a cast: as a kernel of its own, and absorbed by a neighbour.
_ALONE, _ABSORBED = _WIDE + _NARROW, 1


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


#: These only rename their operand's elements, and move no byte in either precision.
MOVES_NOTHING = _names("reshape expand_dims squeeze flatten")

#: Their kernels convert what they load, and store what they computed narrowed or wide: products while they pack, work
#: on rows, elementwise groups and moves of data in registers.
CONVERTING = _names("""
    matmul nn.conv1d nn.conv2d nn.conv1d_transpose nn.conv2d_transpose nn.attention nn.attention_bias
    nn.softmax nn.log_softmax nn.layer_norm nn.rms_norm nn.group_norm nn.batch_norm sum mean max min variance std
    add bias_add subtract multiply divide maximum minimum negative abs square sqrt rsqrt exp log erf tanh sigmoid sin
    cos clip power where nn.relu nn.gelu nn.gelu_tanh nn.silu nn.leakyrelu nn.softplus nn.selu nn.expm1 nn.log1p
    nn.gated_add log_add_exp tan sinh cosh asinh acosh atanh asin acos atan atan2 floor_divide floor_mod mod
    astype permute_dims concat split strided_slice take broadcast_to stack tile repeat nn.pad
    nn.max_pool2d nn.avg_pool2d nn.adaptive_avg_pool2d
    nn.cross_entropy grad.cross_entropy_backward grad.softmax_backward grad.log_softmax_backward grad.attention_backward
    grad.layer_norm_backward grad.rms_norm_backward grad.group_norm_backward grad.instance_norm_backward
    grad.relu_backward grad.gelu_backward grad.gelu_tanh_backward grad.silu_backward grad.selu_backward
    grad.broadcast_backward grad.leakyrelu_backward grad.softplus_backward grad.sigmoid_backward grad.tanh_backward
    grad.gated_add_backward
""")


def cast_bytes(elements: int) -> int:
    """Bytes that a cast between float32 and a 16-bit dtype reads and writes if it is a kernel of its own."""
    return elements * _ALONE


def cast_weight(objective: str, elements: int, *, absorbed: bool) -> int:
    """The weight of one cast of a tensor of `elements` elements, which a neighbouring kernel absorbs or not."""
    return 1 if objective == "casts" else elements * (_ABSORBED if absorbed else _ALONE)


def traffic_weight(objective: str, op_name: str, elements: int) -> int:
    """How many bytes more a flexible operator over `elements` elements in all moves in float32 than in 16 bits."""
    return 0 if objective == "casts" or op_name in MOVES_NOTHING else elements * (_WIDE - _NARROW)
