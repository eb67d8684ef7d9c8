"""The phase."""

from __future__ import annotations

import tvm

from autocast.ir.rewriting import rewrite_functions
from autocast.kernels.phases.channels_last.rewriter import ChannelsLast
from autocast.kernels.phases.channels_last.rules import rule_of


def channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute convolutions, and what is between them, on data whose channels are the last axis.

    Before::                                    After::

        c = R.nn.conv2d(x, w)                       a = R.permute_dims(x, [0, 2, 3, 1])
        b = R.reshape(bias, [1, 8, 1, 1])           c = R.nn.conv2d(a, w, data_layout="NHWC", out_layout="NHWC")
        y = R.add(c, b)                             y = R.add(c, bias)
        p = R.mean(y, axis=[2, 3])                  p = R.mean(y, axis=[1, 2])

    Each value is moved at most once in each direction, where something first asks for it. Transpositions of the
    model's own that do the same, such as those around layer_norm, vanish.
    """
    return rewrite_functions(mod, ChannelsLast, rule_of)
