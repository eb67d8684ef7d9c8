"""What each operator of Relax computes, in numpy: `OPERATORS`, by name."""

from tests.fuzz.operators import (
    creation,
    elementwise,
    gradients,
    indexing,
    layout,
    losses,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    special,
    vision,
)
from tests.fuzz.operators.registry import OPERATORS, Unknown

__all__ = [
    "OPERATORS",
    "Unknown",
    "creation",
    "elementwise",
    "gradients",
    "indexing",
    "layout",
    "losses",
    "normalization",
    "pooling",
    "products",
    "recurrent",
    "reductions",
    "special",
    "vision",
]
