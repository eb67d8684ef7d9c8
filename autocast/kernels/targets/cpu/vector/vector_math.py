"""Functions of float32 vectors, branch-free, as LLVM IR: what kernels compute element by element.

LLVM leaves `llvm.exp` and its like on vectors to one scalar libm call a lane; these functions stay in vector registers.
Each is an `alwaysinline` LLVM function: a kernel imports `math_ir(lanes)` by `pragma_import_llvm` and calls
`call(name, x)`, which is opaque to TIR's passes (TIR's own `Let` does not survive them) and nothing but instructions
after LLVM's inliner.

Largest errors over all float32, in units of the last place (the tests measure them against float64): exp and erf 1.2,
expm1 1.7, tanh and sigmoid 2.8, log 0.9, log1p 1.5, softplus 1.9, sin and cos 1.6, tan 3.2, sinh 3.6, cosh 3.2, their
inverses 2.3, asin, acos and atan 2, selu 2.3, silu 4, powers 1.5; gelu is as exact as its argument. NaN gives NaN,
infinities give the limits, subnormal arguments and results are right, signed zeros are kept. AVX-512, which is where
vectors have 16 lanes, scales by a power of two in one instruction and divides by an estimate and a step of Newton's.
"""

from __future__ import annotations

from functools import cache

from tvm import tirx

from autocast.kernels.targets.cpu.vector import (
    arcs,
    arithmetic,
    exponentials,
    hyperbolic,
    logarithms,
    powers,
    random,
    remainders,
    trigonometry,
)
from autocast.kernels.targets.cpu.vector.function_body import Definition, function_ir

#: Every function that `math_ir` defines and `call` calls.
FUNCTIONS: dict[str, Definition] = {
    **arcs.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **exponentials.FUNCTIONS,
    **hyperbolic.FUNCTIONS,
    **logarithms.FUNCTIONS,
    **powers.FUNCTIONS,
    **random.FUNCTIONS,
    **remainders.FUNCTIONS,
    **trigonometry.FUNCTIONS,
}


@cache
def math_ir(lanes: int, names: tuple[str, ...] = tuple(FUNCTIONS)) -> str:
    """LLVM IR that defines `names` for vectors of `lanes` float32 numbers (scalars for 1), for a kernel to import."""
    functions = [function_ir(_symbol(name, lanes), FUNCTIONS[name], lanes) for name in names]
    declarations = set().union(*(needed for _, needed in functions))
    return "".join([*sorted(declarations), *(text for text, _ in functions)])


def call(name: str, *operands: tirx.Expr) -> tirx.Expr:
    """`name` of float32 scalars or vectors; the kernel must import `math_ir` for as many lanes as they have."""
    dtype = str(operands[0].ty)
    lanes = int(dtype.partition("x")[2] or 1)
    return tirx.call_pure_extern(dtype, _symbol(name, lanes), *operands)


def _symbol(name: str, lanes: int) -> str:
    return f"autocast_{name}_{lanes}"
