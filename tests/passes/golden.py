"""What the golden tests share: AutoCast gives exactly the expected module, and says so of itself."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from autocast import amp
from tests.plain import plain_machine


def check(before: tvm.IRModule, expected: tvm.IRModule, **options: object) -> None:
    """AutoCast of `before` is `expected`, variable names aside; doing it again changes nothing."""
    after = amp.autocast(before, **options)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, expected)
    if options.get("solver") != "greedy":
        tvm.ir.assert_structural_equal(amp.autocast(after, **options), expected)


def check_unchanged(before: tvm.IRModule, **options: object) -> None:
    """AutoCast has nothing to do."""
    check(before, before, **options)


def casts_that_change_nothing(mod: tvm.IRModule) -> list[str]:
    """The dtypes of the casts to the dtype that their argument has already."""
    found: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.astype"):
            source = expr.args[0].ty.dtype
            if source is not None and str(source) == str(expr.attrs.dtype):
                found.append(str(source))

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found


def run(mod: tvm.IRModule, *args: np.ndarray) -> list[np.ndarray]:
    """The results of @main, compiled by TVM alone."""
    machine = plain_machine(mod)
    result = machine["main"](*map(tvm.runtime.tensor, args))
    return [part.numpy() for part in (result if isinstance(result, tvm.ir.Array | tuple | list) else [result])]
