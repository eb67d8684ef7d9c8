"""Convolutions: matrix products over windows."""

from __future__ import annotations

from type_hints.helpers import low
from type_hints.registry import rule

_WINDOWS = "matrix units multiply low precision and accumulate each window in float32, so either result is free"
_TRANSPOSED = "the adjoint of a convolution: the same products, accumulated in float32, so either result is free"

RULES = (
    rule("relax.nn.conv1d", low(2, result="either"), why=_WINDOWS),
    rule("relax.nn.conv2d", low(2, result="either"), why=_WINDOWS),
    rule("relax.nn.conv3d", low(2, result="either"), why=_WINDOWS),
    rule("relax.nn.conv1d_transpose", low(2, result="either"), why=_TRANSPOSED),
    rule("relax.nn.conv2d_transpose", low(2, result="either"), why=_TRANSPOSED),
    rule("relax.nn.conv3d_transpose", low(2, result="either"), why=_TRANSPOSED),
)
