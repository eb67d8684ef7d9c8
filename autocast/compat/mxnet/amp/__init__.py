"""MXNet's mixed precision (`mxnet.amp` 2.0), in its words.

Its framework's default lists are our rules, with MXNet's operators of several inputs: these take the widest dtype among
them, and only what is narrower is cast. Source: MXNet's pull request 20753.
"""

from __future__ import annotations

from autocast.compat.mxnet.amp.convert import convert_hybrid_block, convert_model, convert_symbol
from autocast.compat.mxnet.amp.lists import (
    list_conditional_fp32_ops,
    list_fp32_ops,
    list_lp16_fp32_ops,
    list_lp16_ops,
    list_widest_type_cast,
)
from autocast.compat.mxnet.amp.training import init, init_trainer, scale_loss, unscale
from autocast.compat.names import named

__all__ = [
    "convert_hybrid_block",
    "convert_model",
    "convert_symbol",
    "init",
    "init_trainer",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_widest_type_cast",
    "scale_loss",
    "unscale",
]

_INSTEAD = {
    "list_loss_output_functions": "losses are autocast.training's, which are float32",
    "list_lp16_use_fp32_params": "normalizations are float32 as a whole: list_fp32_ops",
}

__getattr__ = named(__name__, __all__, instead=_INSTEAD)
