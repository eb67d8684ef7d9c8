"""Matrix products."""

from __future__ import annotations

from type_hints.helpers import low
from type_hints.registry import rule

RULES = (
    rule(
        "relax.matmul",
        low(2, result="either"),
        why="matrix units multiply low precision and accumulate in float32, so either result is free",
    ),
    rule(
        "relax.nn.grouped_matmul",
        low(2),
        why="a matmul of each group of rows; it has no out_dtype, so the result is low too",
    ),
    rule("relax.einsum", low(1), why="a sum of products, as matmul; it has no out_dtype, so the result is low too"),
)
