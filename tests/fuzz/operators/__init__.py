"""What each operator of Relax computes, in numpy: `OPERATORS`, by name."""

from tests.fuzz.operators import (
    creation,
    elementwise,
    indexing,
    layout,
    losses,
    normalization,
    pooling,
    products,
    reductions,
)
from tests.fuzz.operators.registry import OPERATORS

__all__ = [
    "OPERATORS",
    "creation",
    "elementwise",
    "indexing",
    "layout",
    "losses",
    "normalization",
    "pooling",
    "products",
    "reductions",
]
