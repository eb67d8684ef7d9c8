"""Elementwise expressions as trees, and the functions of float32 vectors that compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm import relax, tirx

from autocast.ir import is_constant, op_name
from autocast.kernels.vector import vector_math

#: A dimension: a number, or the name of one that is known at run time.
Dim: TypeAlias = int | str

#: An expression tree: ("load", argument), ("constant", value), ("result",), or (function, *operands).
Tree: TypeAlias = tuple

#: Elementwise functions of vectors of float32 numbers, by the name that trees use. Truth values are 1.0 and 0.0.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    **{name: lambda *x, name=name: vector_math.call(name, *x) for name in vector_math.FUNCTIONS},
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    **{
        name: lambda x, name=name: tirx.call_pure_extern(str(x.ty), f"autocast_{name}", x)
        for name in ("round_bfloat16", "round_float16")
    },
}

#: Elementwise Relax operators of tensors alone, and the function that computes each.
OPERATORS: dict[str, str] = {
    **{f"relax.{name}": name for name in FUNCTIONS if name not in ("clip", "leakyrelu")},
    **{f"relax.nn.{name}": name for name in ("relu", "gelu", "gelu_tanh", "silu")},
}

#: Those that take numbers too: the attributes that follow the tensors.
ATTRIBUTES: dict[str, tuple[str, ...]] = {"relax.nn.leakyrelu": ("alpha",)}

#: Functions for powers of which the exponent is known.
POWERS = {2.0: "square", 3.0: "cube", 4.0: "fourth", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def operation(call: relax.Expr) -> tuple[str, tuple[relax.Expr | float, ...]] | None:
    """The function that computes an elementwise operator, and its operands; None for what no function computes.

    Operands are tensors, or numbers where the operator has attributes (the slope of leakyrelu) or constants.
    """
    name = op_name(call)
    if name in ATTRIBUTES:
        numbers = [float(getattr(call.attrs, attribute)) for attribute in ATTRIBUTES[name]]
        return name.rpartition(".")[2], (*call.args, *numbers)
    if name == "relax.clip":
        return "clip", (call.args[0], *[float(bound.value) for bound in call.args[1:]])
    if name == "relax.power" and is_constant(call.args[1]) and call.args[1].value.numpy().size == 1:
        function = POWERS.get(float(call.args[1].value.numpy().reshape(())))
        return None if function is None else (function, (call.args[0],))
    return (OPERATORS[name], tuple(call.args)) if name in OPERATORS else None


def called(*trees: Tree) -> set[str]:
    """The names of the `vector_math` functions that trees call: what a kernel has to import."""
    found: set[str] = set()
    for tree in trees:
        if tree[0] in vector_math.FUNCTIONS:
            found.add(tree[0])
        found |= called(*[operand for operand in tree[1:] if isinstance(operand, tuple)])
    return found
