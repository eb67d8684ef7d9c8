"""Automatic mixed precision, RAF's way: `autocast` a model, override casting rules with `CustomTypeHint`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import tvm

from autocast.errors import AutocastError, SlowDtypeWarning
from autocast.kernels.target import detect_target, slow_dtype
from autocast.passes.auto_cast import AutoCast, auto_cast
from autocast.passes.cast_costs import Objective
from type_hints import CustomTypeHint

if TYPE_CHECKING:
    from autocast.model import Model

__all__ = ["AutoCast", "CustomTypeHint", "autocast"]

Subject = TypeVar("Subject", "Model", tvm.IRModule)

#: The lines that users of this process have read.
_warned: set[str] = set()


def autocast(
    model_or_module: Subject,
    args: Any = None,
    *,
    dtype: Any = "bfloat16",
    out_dtype: str | None = None,
    objective: Objective = "bytes",
    solver: str = "optimal",
) -> Subject:
    """Insert the fewest casts that satisfy every operator's casting rule.

    Parameters
    ----------
    model_or_module
        A `Model`, or an IRModule with Relax functions. It is not changed.
    args
        Example inputs, as RAF's `autocast` takes them. The types are in the IR already, so they are not looked at.
    dtype
        The AMP dtype: "bfloat16" or "float16", or torch's dtype of that name.
    out_dtype
        The dtype of the floating-point results; None: what they were.
    objective
        What is minimized: "bytes" (that the casts move) or "casts" (their number).
    solver
        "optimal" (a minimum cut) or "greedy" (one forward pass that follows the majority).

    Returns
    -------
    The same kind as `model_or_module`, with a `CastReport` in its attribute `report`.

    Raises
    ------
    CastingRuleError
        An operator has no casting rule, a rule misbehaves, or the module was autocast with another dtype.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    AutocastError
        An option is none of its legal values, or what should be autocast is neither a Model nor an IRModule.

    Warns
    -----
    SlowDtypeWarning
        Nothing on this machine (or AUTOCAST_TARGET) multiplies `dtype` faster than float32; said once a process.
    """
    if isinstance(args, str) or type(args).__name__ == "dtype":
        raise AutocastError(f"autocast: the second argument is the example inputs, got {args!r}; try dtype={args!r}")
    if not isinstance(model_or_module, tvm.IRModule) and not hasattr(model_or_module, "mod"):
        raise AutocastError(
            f"autocast: got a {type(model_or_module).__name__}, expected a Model or a tvm.IRModule; a torch module "
            "becomes a Model with autocast.from_torch(module, example_args)"
        )
    dtype = str(dtype).removeprefix("torch.")
    is_module = isinstance(model_or_module, tvm.IRModule)
    module = model_or_module if is_module else model_or_module.mod
    result, report = auto_cast(module, dtype, out_dtype, objective, solver)
    line = slow_dtype(dtype, detect_target())
    if line is not None and line not in _warned:
        _warned.add(line)
        warnings.warn(f"autocast: {line}", SlowDtypeWarning, stacklevel=2)
    if is_module:
        result.report = report
        return result
    return model_or_module.replace(mod=result, report=report)
