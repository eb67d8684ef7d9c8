"""The ordered rules that choose kernels: each takes the patterns it knows, and says why it declines the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tvm

from autocast.kernels.matching.attention.rule import lower_attention
from autocast.kernels.matching.convolutions.gradient_rule import lower_weight_gradients
from autocast.kernels.matching.convolutions.pooling_rule import lower_pooling
from autocast.kernels.matching.convolutions.rule import lower_convolutions
from autocast.kernels.matching.elementwise.rule import lower_elementwise
from autocast.kernels.matching.layout.rule import lower_layout
from autocast.kernels.matching.products.rule import lower_products
from autocast.kernels.matching.reductions.rule import lower_reductions
from autocast.kernels.matching.reductions.scatter_rule import lower_scatters
from autocast.kernels.matching.rows.rule import lower_rows


class Rule(NamedTuple):
    """A kind of kernel: its name in debugging output, the patterns that it takes, and the pass that lowers them."""

    name: str
    takes: str
    lower: Callable[[tvm.IRModule, tvm.target.Target], tvm.IRModule]


#: In this order: what holds the most arithmetic claims its neighbours first, once pooling has moved casts to what comes
#: before it. What no rule takes goes TVM's way.
RULES = (
    Rule("attention", "attention, as one operator or as products around a softmax", lower_attention),
    Rule("pooling", "max and average pooling, global and adaptive ones too", lower_pooling),
    Rule("convolutions", "conv1d, conv2d and their transposes: bias, activation, residual", lower_convolutions),
    Rule("scatter", "gradients of lookups, and the dense gradient they are added to", lower_scatters),
    Rule("weight_gradients", "gradients of the weights of conv1d and conv2d", lower_weight_gradients),
    Rule("products", "matmul, with transposed and narrowed operands, bias, activation and residual", lower_products),
    Rule("rows", "softmax, norms, losses, reductions and scans over the last axes, and their neighbours", lower_rows),
    Rule("layout", "what only moves data: permutations, joins, cuts, repeats, fills and casts of those", lower_layout),
    Rule("reductions", "sums, means, extremes and variances over any axes, with what only they read", lower_reductions),
    Rule("elementwise", "groups of elementwise operators, with what they broadcast and cast", lower_elementwise),
)
