"""Operators of users: one call gives type, casting rule, what computes them, gradient, and the torch operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

import type_hints
from autocast.errors import OperatorError
from autocast.ir import all_bindings, op_name, relax_functions
from autocast.operators.operator import Expanded, Expansion, Operator, enter
from autocast.operators.row import TABLE, Flops, Kind, OperatorRow

_NAME = re.compile(r"(?:relax\.)?([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_ARGUMENTS = re.compile(r"[A-Za-z_]\w*( [A-Za-z_]\w*)*( [A-Za-z_]\w*\?)*|[A-Za-z_]\w*\?( [A-Za-z_]\w*\?)*")
_TORCH = re.compile(r"\w+::\w+")

#: The names of users' operators.
REGISTERED: set[str] = set()


def register(
    name: str,
    arguments: str,
    *,
    infer_type: Callable[[relax.Call], tvm.ir.Type],
    rule: type_hints.Rule,
    why: str,
    compute: Callable[..., Any] | None = None,
    expand: Callable[[Expansion], Expanded] | None = None,
    gradient: Callable[[Any], Sequence[Any]] | None = None,
    torch: str = "",
    flops: Flops | None = None,
    override: bool = False,
) -> Operator:
    """Make an operator of your own known to types, TVMScript, AutoCast, kernels, gradients and the importer.

    Parameters
    ----------
    name : str
        Namespace and name, "audio.snake"; in a module it is `relax.audio.snake`.
    arguments : str
        Names of its tensor arguments, separated by spaces; those that may be missing come last and end in "?".
    infer_type : callable
        The type of a call's result, from the call: its arguments have types, its attributes are `call.attrs`.
        `autocast.operators.like(0)` is the type of the first argument.
    rule, why
        The casting rule, such as `type_hints.follow(1)`, and the reason for it.
    compute : callable, optional
        What it computes, as a tensor expression: a function of `tvm.te` tensors, and the attributes by name, that
        returns one tensor, or several for a result that is a tuple. It is given float32 where bfloat16 or float16 is
        stored.
    expand : callable, optional
        What it computes, in operators that there are: a function of an `Expansion` that returns an expression, or one
        for each field of a tuple. Of elementwise operators it becomes one vector kernel, with its neighbours.
    gradient : callable, optional
        `gradient(backward) -> one adjoint for each argument`, as `autocast.training.gradients` has it.
    torch : str, optional
        The torch operator that is imported as this one, "audio::snake". Its tensors are the arguments, in order; its
        numbers are attributes, by their names.
    flops : callable, optional
        Its operations, from the call, the shapes of the arguments and that of the result, if `calc_model_gflops` is to
        count them.
    override : bool
        True gives an operator of yours that is registered already another meaning, in a notebook say.

    Returns
    -------
    Operator
        Makes calls: `snake(x, alpha, beta=1.0)`, tensors first, attributes by name.

    Raises
    ------
    OperatorError
        The name is not one, or taken; none or both of `compute` and `expand` are given; arguments are not names.
    type_hints.CastingRuleError
        The rule is none, or has no reason.
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise OperatorError(f"register: got the name {name!r}, expected a namespace and a name, such as 'audio.snake'")
    full = f"relax.{match[1]}.{match[2]}"
    here = f"register({name!r})"
    if full in TABLE and not (full in REGISTERED and override):
        hint = "pass override=True to replace it" if full in REGISTERED else "choose a namespace of your own"
        raise OperatorError(f"{here}: an operator {full} exists already; {hint}")
    if not isinstance(arguments, str) or _ARGUMENTS.fullmatch(arguments) is None:
        raise OperatorError(
            f"{here}: got arguments={arguments!r}, expected names separated by spaces, optional ones last: 'x alpha?'"
        )
    if (compute is None) == (expand is None):
        given = "none" if compute is None else "both"
        raise OperatorError(f"{here}: got {given} of compute= and expand=, expected one of them")
    functions = {"infer_type": infer_type, "compute": compute, "expand": expand, "gradient": gradient, "flops": flops}
    for parameter, function in functions.items():
        if (function is not None and not callable(function)) or (parameter == "infer_type" and function is None):
            raise OperatorError(f"{here}: got {parameter}={function!r}, expected a function")
    if torch and _TORCH.fullmatch(torch) is None:
        raise OperatorError(f"{here}: got torch={torch!r}, expected 'namespace::name', as in torch.library.custom_op")
    operator = Operator(full, tuple(arguments.split()), infer_type, expand, compute=compute)
    enter(operator, why)
    type_hints.register_op_cast_rule(full, rule, why=why, override=override)
    kind = Kind.SHORTHAND if compute is None else Kind.DEFINED
    TABLE[full] = OperatorRow(full, kind, flops=flops, gradient=gradient, torch=torch)
    REGISTERED.add(full)
    return operator


def calls_registered(mod: tvm.IRModule) -> bool:
    """Whether a module calls operators that a user registered: nobody knows when what they compute is changed."""
    return bool(REGISTERED) and any(
        op_name(binding.value) in REGISTERED
        for _, function in relax_functions(mod)
        for binding in all_bindings(function.body)
    )
