"""AutoCast: insert the cheapest casts that satisfy every operator's casting rule, and prove that none are cheaper."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import tvm
from tvm import relax

from autocast import settings
from autocast.collecting import without_garbage_collection
from autocast.errors import IllFormedModuleError
from autocast.ir import Reading, check_well_formed
from autocast.ir.failures import in_phase
from autocast.ir.matched import bind_matched_calls, matches_calls
from autocast.passes.casting.costs import CostModel
from autocast.passes.casting.erasure import check_erasure
from autocast.passes.casting.plan import ModulePlan
from autocast.passes.casting.planner import Planner
from autocast.passes.casting.report import CastReport, GreedyChoice
from autocast.passes.casting.rewriter import CastRewriter
from autocast.passes.casting.solver import solve
from autocast.passes.casting.well_typed import check_types
from autocast.policy import Decisions, Policy


def auto_cast(
    mod: tvm.IRModule,
    policy: Policy,
    costs: CostModel,
    params: Mapping[str, tvm.runtime.Tensor] = MappingProxyType({}),
) -> tuple[tvm.IRModule, CastReport]:
    """The module with its casts, and the report.

    Parameters
    ----------
    mod
        A module with Relax functions.
    policy
        Decides which casting rule each call is asked. The results of functions that no other function calls get its
        `out_dtype`; what replaces a parameter (the attribute `updates`) always keeps its dtype.
    costs
        Knows which casts are free, and which are kernels of their own, on the target.
    params
        Main's last parameters by the names that they have in their torch module: the policy's name patterns look at
        the names, and what reads a value that the low dtype cannot hold stays float32.

    Raises
    ------
    CastingRuleError
        An operator has no casting rule (all are listed), or a rule misbehaves.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    PolicyError
        The policy asks for an attribute that an operator does not have.
    """
    start = time.perf_counter()
    with without_garbage_collection():
        result, report = _auto_cast(mod, policy, costs, params)
    report = replace(report, milliseconds=1e3 * (time.perf_counter() - start))
    _debug(mod, result, report)
    return result, report


def _auto_cast(
    mod: tvm.IRModule, policy: Policy, costs: CostModel, params: Mapping[str, tvm.runtime.Tensor]
) -> tuple[tvm.IRModule, CastReport]:
    if not any(isinstance(function, relax.Function) for function in mod.functions.values()):
        names = sorted(global_var.name_hint for global_var in mod.functions)
        raise IllFormedModuleError(f"AutoCast: the module has no Relax function; it holds {names or 'nothing'}")
    check_well_formed("AutoCast", mod, IllFormedModuleError, types=False)
    reading = Reading(mod)
    if matches_calls(reading):
        reading = Reading(bind_matched_calls(mod))
    with in_phase("plan", reading.mod, lambda part: _plan(Reading(part), policy, costs, {})):
        try:
            plan, decisions = _plan(reading, policy, costs, params)
        except Exception:
            check_well_formed("AutoCast", mod, IllFormedModuleError)  # wrong types are said before all else
            raise
        check_types(mod, reading, plan.signatures)
    with in_phase("solve"):
        solution = solve(plan.problem)
        greedy = GreedyChoice(plan)
        low, cost = (solution.low, solution.cost) if policy.solver == "optimal" else (greedy.low, greedy.cost)
    with in_phase("rewrite"):
        rewriter = CastRewriter(plan, low)
        result = rewriter.rewrite(reading)
    with in_phase("check"):
        check_erasure(reading, result, policy.dtype)
    return result, CastReport(
        dtype=policy.dtype,
        objective=policy.objective,
        solver=policy.solver,
        inserted=tuple(rewriter.forms.casts),
        cost=cost,
        lower_bound=solution.lower_bound,
        greedy=greedy,
        milliseconds=0.0,
        bindings=len(plan.calls),
        unused=decisions.unused(),
        out_of_range=decisions.out_of_range,
        policy=str(policy),
        _plan=plan,
        _low=low,
    )


def _plan(
    reading: Reading, policy: Policy, costs: CostModel, params: Mapping[str, tvm.runtime.Tensor]
) -> tuple[ModulePlan, Decisions]:
    decisions = Decisions(policy, reading, params)
    return Planner(decisions, costs).read(reading), decisions


def _debug(before: tvm.IRModule, after: tvm.IRModule, report: CastReport) -> None:
    """Print what AUTOCAST_DEBUG asks for: 1 the pass and its time, 2 its decisions, 3 the difference it made."""
    level = settings.debug().level
    if level >= 1:
        print(f"AutoCast: {report.milliseconds:.1f} ms, {report.summary()}", file=sys.stderr)
    if level >= 2:
        for decision in report.decisions:
            print(f"  {decision}", file=sys.stderr)
    if level >= 3:
        old, new = before.script().splitlines(), after.script().splitlines()
        print("\n".join(difflib.unified_diff(old, new, "before", "after", lineterm="", n=0)), file=sys.stderr)
