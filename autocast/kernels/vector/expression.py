"""Elementwise expressions as trees, and the functions of float32 vectors that compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm import tirx

from autocast.kernels.vector import vector_math

#: A dimension: a number, or the name of one that is known at run time.
Dim: TypeAlias = int | str

#: An expression tree: ("load", argument), ("constant", value), ("result",), or (function, *operands).
Tree: TypeAlias = tuple

#: Elementwise functions of vectors of float32 numbers, by the name that trees use.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": tirx.max,
    "minimum": tirx.min,
    **{
        name: lambda x, name=name: vector_math.call(name, x)
        for name in ("exp", "tanh", "sigmoid", "relu", "gelu", "gelu_tanh", "silu")
    },
}

#: Elementwise Relax operators, and the function that computes each.
OPERATORS: dict[str, str] = {f"relax.{name}": name for name in FUNCTIONS} | {
    f"relax.nn.{name}": name for name in ("relu", "gelu", "gelu_tanh", "silu")
}


def called(*trees: Tree) -> set[str]:
    """The names of the `vector_math` functions that trees call: what a kernel has to import."""
    found: set[str] = set()
    for tree in trees:
        if tree[0] in vector_math.FUNCTIONS:
            found.add(tree[0])
        found |= called(*[operand for operand in tree[1:] if isinstance(operand, tuple)])
    return found
