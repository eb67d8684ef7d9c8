"""AutoCast: insert the fewest casts that satisfy every operator's casting rule, and prove that they are the fewest."""

from __future__ import annotations

import difflib
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import tvm
from tvm import relax

from autocast import settings
from autocast.errors import AutocastError, IllFormedModuleError
from autocast.passes.cast_costs import OBJECTIVES, Objective, cast_bytes
from autocast.passes.cast_erasure import check_erasure
from autocast.passes.cast_planner import Planner
from autocast.passes.cast_report import CastReport
from autocast.passes.cast_rewriter import CastRewriter
from autocast.passes.cast_solver import solve, solve_greedily

AMP_DTYPES = ("bfloat16", "float16")
SOLVERS = ("optimal", "greedy")


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
        The AMP dtype: "bfloat16" or "float16".
    out_dtype
        The dtype of the floating-point results of functions that no other function calls; None: what they were. What
        replaces a parameter (the attribute `updates`) always keeps its dtype.
    objective
        What is minimized: "bytes" (that the casts move) or "casts" (their number).
    solver
        "optimal": a minimum cut. "greedy": one forward pass that follows the majority, as RAF's does.
    """

    def __init__(
        self,
        dtype: str = "bfloat16",
        *,
        out_dtype: str | None = None,
        objective: Objective = "bytes",
        solver: str = "optimal",
    ) -> None:
        _check_options(dtype, out_dtype, objective, solver)
        self.dtype, self.out_dtype, self.objective, self.solver = dtype, out_dtype, objective, solver
        self.report: CastReport | None = None

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """`mod` with its casts; it is not changed itself."""
        result, self.report = auto_cast(mod, self.dtype, self.out_dtype, self.objective, self.solver)
        return result


def auto_cast(
    mod: tvm.IRModule,
    dtype: str = "bfloat16",
    out_dtype: str | None = None,
    objective: Objective = "bytes",
    solver: str = "optimal",
) -> tuple[tvm.IRModule, CastReport]:
    """The module with its casts, and the report. See `AutoCast` for the parameters.

    Raises
    ------
    AutocastError
        An option is none of its legal values.
    CastingRuleError
        An operator has no casting rule (all are listed), a rule misbehaves, or the module holds another 16-bit dtype.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    """
    _check_options(dtype, out_dtype, objective, solver)
    start = time.perf_counter()
    with _no_garbage_collection():
        result, report = _auto_cast(mod, dtype, out_dtype, objective, solver)
    report = replace(report, milliseconds=1e3 * (time.perf_counter() - start))
    _debug(mod, result, report)
    return result, report


def _auto_cast(
    mod: tvm.IRModule, dtype: str, out_dtype: str | None, objective: Objective, solver: str
) -> tuple[tvm.IRModule, CastReport]:
    if not any(isinstance(function, relax.Function) for function in mod.functions.values()):
        names = sorted(global_var.name_hint for global_var in mod.functions)
        raise IllFormedModuleError(f"AutoCast: the module has no Relax function; it holds {names or 'nothing'}")
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1]
        raise IllFormedModuleError(
            f"AutoCast: the module is not well formed: {reason} Expected Relax in A-normal form, every variable bound "
            "before its use; relax.transform.Normalize() mends modules built by hand"
        ) from error
    plan = Planner(dtype, out_dtype, objective).read(mod)
    solution = solve(plan.problem)
    greedy = solve_greedily(plan.problem)
    greedy_casts = plan.problem.casts(greedy)
    greedy_cost = plan.problem.cost(greedy, greedy_casts)
    low, cost = (solution.low, solution.cost) if solver == "optimal" else (greedy, greedy_cost)
    rewriter = CastRewriter(plan, low)
    result = rewriter.rewrite(mod)
    check_erasure(mod, result, dtype)
    return result, CastReport(
        dtype=dtype,
        objective=objective,
        solver=solver,
        inserted=tuple(rewriter.casts),
        cost=cost,
        lower_bound=solution.lower_bound,
        greedy_casts=len(greedy_casts),
        greedy_cast_bytes=sum(cast_bytes(plan.tensors[index].elements) for index in greedy_casts),
        greedy_cost=greedy_cost,
        milliseconds=0.0,
        bindings=len(plan.calls),
        _plan=plan,
        _low=low,
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The pass allocates many small objects and frees few: collecting would only walk all of torch again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _debug(before: tvm.IRModule, after: tvm.IRModule, report: CastReport) -> None:
    """Print what AUTOCAST_DEBUG asks for: 1 the pass and its time, 2 its decisions, 3 the difference it made."""
    level = settings.integer("AUTOCAST_DEBUG")
    if level >= 1:
        print(f"AutoCast: {report.milliseconds:.1f} ms, {report.summary()}", file=sys.stderr)
    if level >= 2:
        for decision in report.decisions:
            print(f"  {decision}", file=sys.stderr)
    if level >= 3:
        old, new = before.script().splitlines(), after.script().splitlines()
        print("\n".join(difflib.unified_diff(old, new, "before", "after", lineterm="", n=0)), file=sys.stderr)


def _check_options(dtype: str, out_dtype: str | None, objective: str, solver: str) -> None:
    options = (
        ("dtype", dtype, AMP_DTYPES),
        ("out_dtype", out_dtype, (None, "float32", dtype)),
        ("objective", objective, OBJECTIVES),
        ("solver", solver, SOLVERS),
    )
    for name, got, allowed in options:
        if got not in allowed:
            legal = ", ".join(repr(value) for value in allowed)
            raise AutocastError(f"AutoCast: {name}={got!r}; expected one of {legal}")
