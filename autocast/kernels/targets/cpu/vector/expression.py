"""Elementwise functions of float32 vectors, and which of them computes a call."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm_ffi
from tvm import tirx

from autocast.kernels.targets.cpu.vector import vector_math

#: What is left of numbers after they were stored, or were computed by themselves; defined by `llvm_ir`.
_ROUNDINGS = ("round_bfloat16", "round_float16", "unfused")


def _difference(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """TVM takes anything less itself for 0, NaN and infinity included."""
    return a + b * tirx.const(-1.0, str(b.ty)) if tvm_ffi.structural_equal(a, b) else _number(a) - _number(b)


def _number(x: tirx.Expr) -> tirx.Expr:
    """0 in other words: TVM takes 0 times anything for 0, NaN and infinity included, and -0 plus 0 for -0."""
    number = x.value if isinstance(x, tirx.Broadcast) else x
    if not isinstance(number, tirx.FloatImm) or number.value != 0:
        return x
    negative = tirx.reinterpret("float32", tirx.const(-(2**31), "int32"))
    word = negative if math.copysign(1.0, number.value) < 0 else tirx.abs(negative)
    return tirx.Broadcast(word, x.lanes) if isinstance(x, tirx.Broadcast) else word


#: Elementwise functions of vectors of float32 numbers, by the name that programs use. Truth values are 1.0 and 0.0.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    **{name: lambda *x, name=name: vector_math.call(name, *x) for name in vector_math.FUNCTIONS},
    "add": lambda a, b: _number(a) + _number(b),
    "subtract": _difference,
    "multiply": lambda a, b: _number(a) * _number(b),
    "divide": lambda a, b: a / b,
    **{name: lambda x, name=name: tirx.call_pure_extern(str(x.ty), f"autocast_{name}", x) for name in _ROUNDINGS},
}

#: Functions of which more than 1 % of the numbers of bfloat16 become subnormal: always, or where an operand is a number
#: whose size is below this.
VANISHING = {
    **dict.fromkeys(("square", "cube", "power", "divide", "gelu"), math.inf),
    **dict.fromkeys(("multiply", "leakyrelu"), 0.5),
}
