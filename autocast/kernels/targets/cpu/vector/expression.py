"""Elementwise functions of float32 vectors, and which of them computes a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tvm import relax, tirx

from autocast.ir import number_of
from autocast.kernels.targets.cpu.vector import vector_math
from autocast.operators import row_of

#: A dimension: a number, or the name of one that is known at run time.
Dim: TypeAlias = int | str

#: What is left of numbers after they were stored; defined by `llvm_ir`.
_ROUNDINGS = ("round_bfloat16", "round_float16")

#: Elementwise functions of vectors of float32 numbers, by the name that programs use. Truth values are 1.0 and 0.0.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    **{name: lambda *x, name=name: vector_math.call(name, *x) for name in vector_math.FUNCTIONS},
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    **{name: lambda x, name=name: tirx.call_pure_extern(str(x.ty), f"autocast_{name}", x) for name in _ROUNDINGS},
}

#: Functions of which more than 1 % of the numbers of bfloat16 become subnormal: always, or where an operand is a number
#: whose size is below this.
VANISHING = {
    **dict.fromkeys(("square", "cube", "power", "divide", "gelu"), math.inf),
    **dict.fromkeys(("multiply", "leakyrelu"), 0.5),
}

#: Where softplus becomes the identity, to the last place of float32.
_SOFTPLUS_THRESHOLD = 17.0

#: Functions for powers of which the exponent is known.
POWERS = {2.0: "square", 3.0: "cube", 4.0: "fourth", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def operation(call: relax.Expr) -> tuple[str, tuple[relax.Expr | float, ...]] | None:
    """The function that computes an elementwise operator, and its operands; None for what no function computes.

    Operands are tensors, or numbers where the operator has attributes (the slope of leakyrelu) or constants.
    """
    row = row_of(call)
    if row is None:
        return None
    if row.name == "relax.nn.softplus":
        beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
        plain = beta == 1.0 and threshold >= _SOFTPLUS_THRESHOLD
        return ("softplus", (call.args[0],)) if plain else ("softplus_scaled", (call.args[0], beta, threshold))
    if row.name == "relax.clip":
        return "clip", (call.args[0], *[float(bound.value) for bound in call.args[1:]])
    if row.name == "relax.power" and (exponent := number_of(call.args[1])) in POWERS:
        return POWERS[exponent], (call.args[0],)
    if not row.vector:
        return None
    return row.vector, (*call.args, *(float(getattr(call.attrs, number)) for number in row.numbers))
