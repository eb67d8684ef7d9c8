"""AutoCast: insert the fewest casts that satisfy every operator's casting rule, and prove that they are the fewest."""

from __future__ import annotations

import time

import tvm
from tvm import relax

from autocast.errors import AutocastError, IllFormedModuleError
from autocast.passes.cast_costs import OBJECTIVES, Objective, cast_bytes
from autocast.passes.cast_erasure import check_erasure
from autocast.passes.cast_plan import ModulePlan, Planner
from autocast.passes.cast_report import CastReport, in_objective_units
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
        The dtype of the floating-point results of functions that no other function calls; None: what they were.
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
        _check("dtype", dtype, AMP_DTYPES)
        _check("out_dtype", out_dtype, (None, "float32", dtype))
        _check("objective", objective, OBJECTIVES)
        _check("solver", solver, SOLVERS)
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
    CastingRuleError
        An operator has no casting rule (all are listed), a rule misbehaves, or the module holds another 16-bit dtype.
    IllFormedModuleError
        The module has no Relax function, or is not well formed.
    """
    start = time.perf_counter()
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
    greedy = solve_greedily(plan.problem)
    solution = solve(plan.problem)
    low = solution.low if solver == "optimal" else greedy
    rewriter = CastRewriter(plan, low)
    result = rewriter.rewrite(mod)
    check_erasure(mod, result, dtype)
    greedy_casts, greedy_bytes = _casts(plan, greedy)
    return result, CastReport(
        dtype=dtype,
        objective=objective,
        solver=solver,
        inserted=tuple(rewriter.casts),
        cost=in_objective_units(plan.problem.cost(low), objective),
        lower_bound=in_objective_units(solution.lower_bound, objective),
        greedy_casts=greedy_casts,
        greedy_cast_bytes=greedy_bytes,
        greedy_cost=in_objective_units(plan.problem.cost(greedy), objective),
        milliseconds=1e3 * (time.perf_counter() - start),
        bindings=len(plan.trees),
        _plan=plan,
        _low=low,
    )


def _casts(plan: ModulePlan, low: list[bool]) -> tuple[int, int]:
    """How many casts an assignment needs, and the bytes they move."""
    elements = [
        leaf.elements
        for leaf in plan.tensors
        if leaf.tensor is not None and any(low[c] != low[leaf.tensor.producer] for c in leaf.tensor.consumers)
    ]
    return len(elements), sum(map(cast_bytes, elements))


def _check(what: str, got: object, allowed: tuple) -> None:
    if got not in allowed:
        legal = ", ".join(repr(value) for value in allowed)
        raise AutocastError(f"AutoCast: {what}={got!r}; expected one of {legal}")
