"""Automatic mixed precision, RAF's way: `autocast` a model, override casting rules with `CustomTypeHint`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import tvm

from autocast.errors import AutocastError, CastingRuleError, InputError, PolicyWarning, SlowDtypeWarning
from autocast.ir.failures import repeatable
from autocast.kernels.cast_costs import KernelCosts
from autocast.kernels.targets.cpu.instruction_sets import detect_target, slow_dtype
from autocast.messages import nearest, shown, warn
from autocast.passes.auto_cast import auto_cast
from autocast.passes.casting.report import CastReport
from autocast.passes.stochastic_rounding import round_stochastically
from autocast.passes.store_parameters import store_parameters
from autocast.policy import Policy, as_policy, disable_autocast, fp16_guard, warn_of_unused
from autocast.policy.patterns import Patterns
from autocast.runtime.signature import Inputs
from autocast.vm.signatures import signature_of
from type_hints import CustomTypeHint

if TYPE_CHECKING:
    from autocast.model import Model

__all__ = [
    "AutoCast",
    "CustomTypeHint",
    "Policy",
    "autocast",
    "cast_model",
    "cast_parameters",
    "disable_autocast",
    "fp16_guard",
]

Subject = TypeVar("Subject", "Model", tvm.IRModule)

#: The lines that users of this process have read.
_warned: set[str] = set()


@tvm.transform.module_pass(opt_level=0, name="AutoCast")
class AutoCast:
    """The pass, for `tvm.transform.Sequential` or called on a module; `report` tells of its last run.

        Before                                  After AutoCast("bfloat16")
        y = matmul(x, w)                        x1 = astype(x, "bfloat16"); w1 = astype(w, "bfloat16")
        z = nn.softmax(y)                       y = matmul(x1, w1, out_dtype="float32")
                                                z = nn.softmax(y)

    Parameters
    ----------
    dtype
        The AMP dtype: "bfloat16" or "float16". Short for `policy=Policy(dtype=...)`.
    policy
        A `Policy`, or its text.
    out_dtype, objective, solver
        Short for the fields of `Policy` with these names.
    """

    def __init__(self, dtype: Any = None, *, policy: Policy | str | None = None, **short_forms: Any) -> None:
        self.policy = as_policy(policy, dtype=dtype, **short_forms)
        self.report: CastReport | None = None

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """`mod` with its casts; it is not changed itself."""
        result, self.report = auto_cast(mod, self.policy, KernelCosts(detect_target()))
        warn_of_unused(self.report.unused)
        return round_stochastically(result, self.policy)


def autocast(
    model_or_module: Subject,
    args: Any = None,
    *,
    policy: Policy | str | None = None,
    dtype: Any = None,
    out_dtype: str | None = None,
    objective: str | None = None,
    solver: str | None = None,
    **fields: Any,
) -> Subject:
    """Insert the cheapest casts that satisfy every operator's casting rule: the fewest bytes, or the fewest in number.

    Parameters
    ----------
    model_or_module
        A `Model`, or an IRModule with Relax functions. It is not changed.
    args : sequence of tensors, or dict of str to tensor, optional
        Example inputs, as RAF's `autocast` takes them: checked against the inputs of main, and otherwise not needed.
    policy
        A `Policy`, or its text such as "mp1"; what it is where nothing is given: bfloat16 by the rules of the tables.
    dtype, out_dtype, objective, solver
        Short for a policy with these fields: the AMP dtype ("bfloat16" or "float16", or torch's dtype of that name),
        the dtype of the results, what is minimized ("bytes" or "casts"), and how ("optimal" or "greedy").
    **fields
        Short for a policy with these fields: any others of `Policy`.

    Returns
    -------
    The same kind as `model_or_module`, with a `CastReport` in its attribute `report`. The parameters of a Model are
    stored in low precision where the policy's `parameters` and `fp32_params` say so; an IRModule has no values to
    store.

    Raises
    ------
    CastingRuleError
        An operator has no casting rule, a rule misbehaves, or the module was autocast with another dtype.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    PolicyError
        An option is none of its legal values, the policy contradicts itself, or it and a short form are both given.
    InputError
        The example inputs are not those of the model.
    AutocastError
        What should be autocast is neither a Model nor an IRModule.

    Warns
    -----
    PolicyWarning
        An entry of the policy concerns nothing in the module, or the low dtype cannot hold a parameter.
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
    if args is not None:
        _check_examples(model_or_module if isinstance(model_or_module, tvm.IRModule) else model_or_module.mod, args)
    policy = as_policy(policy, dtype=dtype, out_dtype=out_dtype, objective=objective, solver=solver, **fields)
    result = apply_policy(model_or_module, policy)
    warn_of_unused(result.report.unused)
    return result


def _check_examples(mod: tvm.IRModule, args: Inputs) -> None:
    """Raise InputError unless `args` fit the inputs of main; all that it takes are inputs unless `num_input` says."""
    names = [var.name_hint for var in mod.get_global_vars()]
    if "main" not in names:
        raise InputError(
            f"autocast: got example inputs for a module of the functions {names}, expected one called main, which they "
            "are checked against; try without them, autocast(mod)"
        )
    main = mod["main"]
    signature = signature_of(main, int((main.attrs or {}).get("num_input", len(main.params))))
    try:
        signature.bind(signature.in_order(args))
    except InputError as error:
        raise InputError(f"autocast: the example inputs are not those of the model. {error}") from None


def apply_policy(subject: Subject, policy: Policy) -> Subject:
    """What `autocast` does, without a warning of unused entries: `report.unused` has them.

    Where several modules are trained or run together, an entry may concern one of them only.
    """
    is_module = isinstance(subject, tvm.IRModule)
    mod, params = (subject, None) if is_module else (subject.mod, subject.params)
    with repeatable("amp.autocast", mod, f"policy={str(policy)!r}", params):
        return _apply(subject, policy, is_module)


def _apply(subject: Subject, policy: Policy, is_module: bool) -> Subject:
    before = getattr(getattr(subject, "report", None), "dtype", policy.dtype)
    if before != policy.dtype:
        raise CastingRuleError(
            f"AutoCast: the module was autocast with dtype={before!r}, and dtype={policy.dtype!r} was asked for. It "
            f"cannot be autocast again; start from the float32 module, or use dtype={before!r}"
        )
    target = detect_target()
    mod, params = (subject, {}) if is_module else (subject.mod, subject.params)
    result, report = auto_cast(mod, policy, KernelCosts(target), params)
    line = slow_dtype(policy.dtype, target)
    if report.casts and line is not None and line not in _warned:
        _warned.add(line)
        warn(f"autocast: {line}", SlowDtypeWarning)
    if is_module:
        result = round_stochastically(result, policy)
        result.report = report
        return result
    model = subject.replace(mod=result, report=report)
    for name, reason in report.out_of_range.items():
        warn(
            f"autocast: the parameter {name} stays float32, and so does what reads it, as {policy.dtype} cannot hold "
            f"it: {reason}. To have it rounded all the same, name it: low_names={name!r}",
            PolicyWarning,
        )
    masters = policy.fp32_params or not model.updated
    if policy.parameters != "float32" or not masters:
        names = () if policy.parameters == "float32" else None
        model = _store(model, names, shared=policy.parameters == "offline_shared", masters=masters)
    model = model.replace(mod=round_stochastically(model.mod, policy))
    return model.replace(reimport=_recast(subject.reimport, policy) if subject.reimport else None)


def _recast(reimport: Callable[[Any], Model], policy: Policy) -> Callable[[Any], Model]:
    """What imports a model for other shapes, and casts it as it was cast here, with the rules that hold now."""
    context = copy_context()
    return lambda shapes: context.copy().run(apply_policy, reimport(shapes), policy)


def cast_model(model: Model, policy: Policy | str | None = None) -> Model:
    """The first half of `autocast(model, policy=...)`: the casts, with all parameters as they were.

    Paddle's `cast_model_to_fp16`. `cast_parameters` is the other half.
    """
    return autocast(model, policy=replace(as_policy(policy), parameters="float32", fp32_params=True))


def cast_parameters(model: Model, names: str | Iterable[str] | None = None, *, shared: bool = False) -> Model:
    """Store parameters in low precision of which only that is read; what `Policy(parameters="offline")` does.

    Parameters
    ----------
    model : Model
        After `autocast`.
    names : str or iterable of str, optional
        Patterns (exact, glob or `/regex/`) of the parameters to store; None: all.
    shared : bool
        Store a parameter twice that is read in both precisions.

    Returns
    -------
    Model
        `report.parameters` says which are stored low, which are not, and how many bytes that saves.

    Raises
    ------
    AutocastError
        The model has not been autocast.

    Warns
    -----
    PolicyWarning
        A pattern matches no parameter, or the low dtype cannot hold a parameter, which stays float32.
    """
    if isinstance(model, tvm.IRModule) or not hasattr(getattr(model, "report", None), "inserted"):
        raise AutocastError(
            f"cast_parameters: got {shown(model, 200)}, expected a model that was autocast, whose casts say which "
            "parameters are read in low precision; try amp.autocast(model), or amp.cast_model(model, policy), first"
        )
    if names is None:
        return _store(model, None, shared=shared)
    if not isinstance(names, Iterable):
        raise AutocastError(
            f"cast_parameters: got a {type(names).__name__}, expected patterns of parameters' names; try 'head.*', "
            "or None for all"
        )
    patterns = Patterns([names] if isinstance(names, str) else names)
    for pattern in patterns.unmatched(model.params):
        warn(
            f"cast_parameters: {pattern!r} matches no parameter; nearest: {nearest(pattern, model.params)}",
            PolicyWarning,
        )
    return _store(model, [name for name in model.params if patterns.first([name])], shared=shared)


def _store(model: Model, names: Iterable[str] | None, **options: bool) -> Model:
    stored, parameters = store_parameters(model, model.report.dtype, names, **options)
    for name, reason in parameters.out_of_range.items():
        warn(
            f"autocast: the parameter {name} stays float32, as {parameters.dtype} cannot store it: {reason}. "
            "The policy has it cast all the same at every call, to the same effect",
            PolicyWarning,
        )
    return stored.replace(report=replace(model.report, parameters=parameters))
