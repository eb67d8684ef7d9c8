"""Attention as one operator: its scores and its softmax stay inside the kernel, in float32."""

from __future__ import annotations

from type_hints.helpers import low
from type_hints.registry import rule

_PRODUCTS = "two matrix products on low precision; scores and softmax never leave the kernel's float32"

RULES = (
    rule("relax.nn.attention", low(3), why=_PRODUCTS),
    rule(
        "relax.nn.attention_bias",
        low(3, keep=3),
        why="as attention; the mask stays float32, as float32's lowest number rounds to -inf, and a row of -inf is NaN",
    ),
    rule("relax.nn.attention_var_len", low(3), why=f"{_PRODUCTS}; the sequence starts are integers"),
)
