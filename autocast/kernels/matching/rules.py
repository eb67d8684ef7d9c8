"""The rules that choose kernels: each takes the patterns it knows, and says why it declines the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tvm

from autocast.kernels.backend import Backend
from autocast.kernels.matching.attention.rule import lower_attention
from autocast.kernels.matching.convolutions.gradient_rule import lower_weight_gradients
from autocast.kernels.matching.convolutions.pooling_rule import lower_pooling
from autocast.kernels.matching.convolutions.rule import lower_convolutions
from autocast.kernels.matching.elementwise.rule import lower_elementwise
from autocast.kernels.matching.layout.row_writes_rule import lower_row_writes
from autocast.kernels.matching.layout.rule import lower_layout
from autocast.kernels.matching.products.grouped import lower_grouped_products
from autocast.kernels.matching.products.rule import lower_products
from autocast.kernels.matching.recurrent.rule import lower_recurrences
from autocast.kernels.matching.reductions.rule import lower_reductions
from autocast.kernels.matching.reductions.scatter_rule import lower_scatters
from autocast.kernels.matching.rows.rule import lower_rows
from autocast.kernels.specs.attention import Attention
from autocast.kernels.specs.convolutions import (
    Convolution,
    ConvolutionWeights,
    Pooling,
    PoolingGradient,
    WeightGradient,
)
from autocast.kernels.specs.layout import Lookup, Move, RowWrites
from autocast.kernels.specs.products import GroupedProduct, Product
from autocast.kernels.specs.program import Program
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.specs.reductions import Reduce, Scatter
from autocast.kernels.specs.rows import Rows


class KernelRule(NamedTuple):
    """A kind of kernel.

    Attributes
    ----------
    name
        What debugging output calls it.
    takes
        The patterns that it takes, in words.
    specs
        The types of specs that it makes of them; it applies to targets that have generators for all.
    lower
        The pass that puts calls of kernels in their place.
    """

    name: str
    takes: str
    specs: tuple[type, ...]
    lower: Callable[[tvm.IRModule, Backend], tvm.IRModule]


#: In this order: what holds the most arithmetic claims its neighbours first, once pooling has moved casts to what comes
#: before it. What no rule takes goes TVM's way.
RULES = (
    KernelRule(
        "attention", "attention, as one operator or as products around a softmax", (Attention,), lower_attention
    ),
    KernelRule("pooling", "max and average pooling, adaptive ones too", (Pooling, PoolingGradient), lower_pooling),
    KernelRule(
        "convolutions",
        "conv1d, conv2d and their transposes: bias, activation, residual",
        (Convolution, ConvolutionWeights),
        lower_convolutions,
    ),
    KernelRule("recurrences", "LSTM, GRU and plain recurrent nets through time", (Recurrence,), lower_recurrences),
    KernelRule("scatter", "gradients of lookups, and the dense gradient they are added to", (Scatter,), lower_scatters),
    KernelRule("row_writes", "slices that are written at run-time places", (RowWrites,), lower_row_writes),
    KernelRule(
        "weight_gradients", "gradients of the weights of conv1d and conv2d", (WeightGradient,), lower_weight_gradients
    ),
    KernelRule(
        "products",
        "matmul, with transposed and narrowed operands, bias, activation and residual",
        (Product,),
        lower_products,
    ),
    KernelRule(
        "grouped_products",
        "products of mixtures of experts: rows sorted by the matrix that they are multiplied by",
        (GroupedProduct,),
        lower_grouped_products,
    ),
    KernelRule(
        "rows", "softmax, norms, losses, reductions and scans over the last axes, and neighbours", (Rows,), lower_rows
    ),
    KernelRule(
        "layout", "what only moves data: permutations, joins, cuts, fills, casts of those", (Move, Lookup), lower_layout
    ),
    KernelRule(
        "reductions",
        "sums, means, extremes and variances over any axes, with what only they read",
        (Reduce,),
        lower_reductions,
    ),
    KernelRule(
        "elementwise",
        "groups of elementwise operators, with what they broadcast and cast",
        (Program,),
        lower_elementwise,
    ),
)
