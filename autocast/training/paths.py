"""Which bindings of a function lie on a way from the variables of interest to the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tvm
from tvm import relax

from autocast.errors import GradientError
from autocast.ir import FLOATS, op_name, relax_functions
from autocast.ir.private import recursive_functions
from autocast.training.gradients import GradientRow, GradientRule, get_gradient

#: The dtypes that a gradient can have.
DIFFERENTIABLE = (*FLOATS, "float64")


class Paths(NamedTuple):
    """What differentiation visits.

    Attributes
    ----------
    wanted
        The variables whose adjoints are computed: the target depends on them, and they on a variable of interest.
        Those that are bound in a branch are among them.
    rules
        The rule of each operator on the way, by its name.
    """

    wanted: set[relax.Var]
    rules: dict[str, GradientRule]


def inline_calls(function: relax.Function, mod: tvm.IRModule) -> relax.Function:
    """`function` with the bodies of the Relax functions of `mod` where it calls them, and where those call others.

    Those that call themselves stay functions.
    """
    functions = {var: callee for var, callee in relax_functions(mod) if callee != function}
    recursive = recursive_functions({var.name_hint: callee for var, callee in functions.items()})
    return function.inline_functions({v: callee for v, callee in functions.items() if v.name_hint not in recursive})


def straight_line(function: relax.Function) -> tuple[list[relax.Binding], list[relax.Expr]]:
    """The bindings of a function, in program order, and its results one by one.

    No dataflow block can hold an `If`, so the bindings of a function with branches are those outside dataflow blocks.
    """
    if has_branches(function):
        function = relax.transform.ToNonDataflow()(tvm.IRModule({"main": function}))["main"]
    bindings = bindings_of(function.body)
    body = function.body.body
    if isinstance(body, relax.Tuple):
        return bindings, list(body.fields)
    if not isinstance(body.ty, tvm.ir.TupleType):
        return bindings, [body]
    fields = [relax.DataflowVar(f"{body.name}_{i}", ty) for i, ty in enumerate(body.ty.fields)]
    values = [relax.VarBinding(field, relax.TupleGetItem(body, i)) for i, field in enumerate(fields)]
    return [*bindings, *values], fields


def bindings_of(sequence: relax.SeqExpr) -> list[relax.Binding]:
    """The bindings of all blocks, in program order."""
    return [binding for block in sequence.blocks for binding in block.bindings]


def has_branches(function: relax.Function) -> bool:
    """Whether an `If` is among the bindings of a function."""
    return any(isinstance(binding.value, relax.If) for binding in bindings_of(function.body))


def find_paths(bindings: Sequence[relax.Binding], wrt: Sequence[relax.Var], target: relax.Var) -> Paths:
    """The ways from `wrt` to `target` through `bindings`.

    Raises
    ------
    GradientError
        There is no way, or an operator on a way has no gradient: the error lists every one of them.
    """
    active = set(wrt)
    _activate(bindings, active)
    if target not in active:
        allocated = next((b for b in bindings if (op_name(b.value) or "").endswith("alloc_tensor")), None)
        if allocated is not None:
            raise GradientError(
                f"differentiate: kernels write into memory of the module's own (%{allocated.var.name} = "
                f"{op_name(allocated.value)}), and what writes has no gradient; expected operators and their results. "
                "Differentiate before relax.transform.CallTIRRewrite, and before LegalizeOps"
            )
        raise GradientError(
            f"differentiate: the result {target.name!r} depends on none of {[var.name for var in wrt]} by way of "
            "floating-point tensors; expected a loss computed from them"
        )
    paths = Paths({target}, {})
    obstacles: Counter[str] = Counter()
    _want(bindings, active, paths, obstacles)
    if obstacles:
        raise GradientError(_no_way(obstacles, target))
    return paths


def branches_of(branch: relax.If) -> tuple[relax.SeqExpr, relax.SeqExpr]:
    """Both branches: what is computed if the condition holds, and if not."""
    return branch.true_branch, branch.false_branch


def variables(expr: relax.Expr) -> Iterator[relax.Var]:
    """The variables that the value of a binding reads directly."""
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Call):
        for argument in expr.args:
            yield from variables(argument)
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from variables(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables(expr.tuple_value)
    elif isinstance(expr, relax.If | relax.Function):
        yield from relax.analysis.free_vars(expr)


def has_floats(ty: tvm.ir.Type) -> bool:
    """Whether a type is, or contains, a floating-point tensor."""
    if isinstance(ty, tvm.ir.TupleType):
        return any(has_floats(field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and str(ty.dtype) in DIFFERENTIABLE


def _activate(bindings: Sequence[relax.Binding], active: set[relax.Var]) -> None:
    """Add what changes with small changes of `active`, in branches too."""
    for binding in bindings:
        if _changes(binding.value, active) and has_floats(binding.var.ty):
            active.add(binding.var)


def _changes(value: relax.Expr, active: set[relax.Var]) -> bool:
    """Whether small changes of `active` can change `value`; what changes inside of its branches becomes active."""
    if isinstance(value, relax.If):
        for branch in branches_of(value):
            _activate(bindings_of(branch), active)
        return any(not active.isdisjoint(variables(branch.body)) for branch in branches_of(value))
    row = get_gradient(op_name(value) or "")
    return (row is None or row.kind != "zero") and not active.isdisjoint(variables(value))


def _want(bindings: Sequence[relax.Binding], active: set[relax.Var], paths: Paths, obstacles: Counter[str]) -> None:
    """Add to `paths` what leads to the variables that are wanted already, and to `obstacles` what is in the way."""
    for binding in reversed(bindings):
        value = binding.value
        if binding.var not in paths.wanted:
            continue
        if isinstance(value, relax.If):
            for branch in branches_of(value):
                paths.wanted.update(active.intersection(variables(branch.body)))
                _want(bindings_of(branch), active, paths, obstacles)
            continue
        name = op_name(value)
        row = get_gradient(name) if name is not None else None
        if row is not None and row.rule is not None:
            paths.rules[row.name] = row.rule
        elif isinstance(value, relax.Call):
            obstacles[_obstacle(value, name, row)] += 1
        paths.wanted.update(active.intersection(variables(value)))


def _obstacle(call: relax.Call, name: str | None, row: GradientRow | None) -> str:
    """Why no gradient passes through a call that has no rule."""
    if name is None:
        return f"a call of {call.op}: pass differentiate(..., mod=...), where the function is; none may call itself"
    if row is None:
        return f"{name}: it has no row; add one with autocast.training.gradients.register_gradient"
    return f"{name}: {row.why}"


def _no_way(obstacles: Counter, target: relax.Var) -> str:
    lines = [f"  {obstacle} ({count} {'calls' if count > 1 else 'call'})" for obstacle, count in obstacles.items()]
    return f"differentiate: no gradient of {target.name!r} passes through\n" + "\n".join(lines)
