"""Automatic mixed precision, RAF's way: `autocast` a model, override casting rules with `CustomTypeHint`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import tvm

from autocast.errors import AutocastError, SlowDtypeWarning
from autocast.kernels.target import detect_target, slow_dtype
from autocast.passes.auto_cast import AutoCast, auto_cast
from autocast.policy import Policy, as_policy, disable_autocast, fp16_guard
from type_hints import CustomTypeHint

if TYPE_CHECKING:
    from autocast.model import Model

__all__ = ["AutoCast", "CustomTypeHint", "Policy", "autocast", "disable_autocast", "fp16_guard"]

Subject = TypeVar("Subject", "Model", tvm.IRModule)

#: The lines that users of this process have read.
_warned: set[str] = set()


def autocast(
    model_or_module: Subject,
    args: Any = None,
    *,
    policy: Policy | str | None = None,
    dtype: Any = None,
    out_dtype: str | None = None,
    objective: str | None = None,
    solver: str | None = None,
) -> Subject:
    """Insert the fewest casts that satisfy every operator's casting rule.

    Parameters
    ----------
    model_or_module
        A `Model`, or an IRModule with Relax functions. It is not changed.
    args
        Example inputs, as RAF's `autocast` takes them. The types are in the IR already, so they are not looked at.
    policy
        A `Policy`, or its text such as "mp1"; what it is where nothing is given: bfloat16 by the rules of the tables.
    dtype, out_dtype, objective, solver
        Short for a policy with these fields: the AMP dtype ("bfloat16" or "float16", or torch's dtype of that name),
        the dtype of the results, what is minimized ("bytes" or "casts"), and how ("optimal" or "greedy").

    Returns
    -------
    The same kind as `model_or_module`, with a `CastReport` in its attribute `report`.

    Raises
    ------
    CastingRuleError
        An operator has no casting rule, a rule misbehaves, or the module was autocast with another dtype.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    PolicyError
        An option is none of its legal values, the policy contradicts itself, or it and a short form are both given.
    AutocastError
        What should be autocast is neither a Model nor an IRModule.

    Warns
    -----
    PolicyWarning
        An entry of the policy concerns nothing in the module.
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
    policy = as_policy(policy, dtype=dtype, out_dtype=out_dtype, objective=objective, solver=solver)
    is_module = isinstance(model_or_module, tvm.IRModule)
    module, params = (model_or_module, ()) if is_module else (model_or_module.mod, tuple(model_or_module.params))
    result, report = auto_cast(module, policy, params)
    line = slow_dtype(policy.dtype, detect_target())
    if line is not None and line not in _warned:
        _warned.add(line)
        warnings.warn(f"autocast: {line}", SlowDtypeWarning, stacklevel=2)
    if is_module:
        result.report = report
        return result
    return model_or_module.replace(mod=result, report=report)
