"""What passes after it may know of a training step: how it counts, and how it updates a parameter."""

from __future__ import annotations

import tvm
from tvm import relax

#: The parameter of a training step that counts its updates: 0-d int64, from 0.
STEP = "optimizer_step"

#: What the functions that update a parameter call it, and its gradient; their first result replaces the parameter.
PARAMETER, GRADIENT = "parameter", "gradient"


def updated_by(call: relax.Expr, mod: tvm.IRModule) -> dict[str, int]:
    """Where the arguments `PARAMETER` and `GRADIENT` of a call are; empty for what is no update of a parameter."""
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
        return {}
    function = mod[call.op]
    names = [param.name for param in function.params] if isinstance(function, relax.Function) else []
    return {name: names.index(name) for name in (PARAMETER, GRADIENT)} if {PARAMETER, GRADIENT} <= {*names} else {}
