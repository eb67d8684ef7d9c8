"""Operators of our own: what differentiation needs, and losses, each one operator of the IR.

A gradient of more than two primitive operators is one operator here, so that programs stay readable, AutoCast decides
one precision for it, and kernels see one pattern. `OPERATORS` has them all; `autocast.kernels.graph.expand` replaces
what no kernel takes whole by operators of TVM. Importing this package registers them.
"""

from autocast.ir.operators.activations import (
    gelu_backward,
    gelu_tanh_backward,
    leakyrelu_backward,
    relu_backward,
    selu_backward,
    sigmoid_backward,
    silu_backward,
    softplus_backward,
    tanh_backward,
)
from autocast.ir.operators.normalization import layer_norm_backward, rms_norm_backward
from autocast.ir.operators.operator import OPERATORS, Expanded, Expansion, Operator, define, like

__all__ = [
    "OPERATORS",
    "Expanded",
    "Expansion",
    "Operator",
    "define",
    "gelu_backward",
    "gelu_tanh_backward",
    "layer_norm_backward",
    "leakyrelu_backward",
    "like",
    "relu_backward",
    "rms_norm_backward",
    "selu_backward",
    "sigmoid_backward",
    "silu_backward",
    "softplus_backward",
    "tanh_backward",
]
