"""Which bindings of a function lie on a way from the variables of interest to the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tvm
from tvm import relax

from autocast.errors import GradientError
from autocast.ir import FLOATS, op_name
from autocast.training.gradients import GradientRow, Rule, get_gradient

#: The dtypes that a gradient can have.
DIFFERENTIABLE = (*FLOATS, "float64")


class Paths(NamedTuple):
    """What differentiation visits.

    Attributes
    ----------
    wanted
        The variables whose adjoints are computed: the target depends on them, and they on a variable of interest.
    rules
        The rule of each operator on the way, by its name.
    """

    wanted: set[relax.Var]
    rules: dict[str, Rule]


def straight_line(function: relax.Function) -> tuple[list[relax.Binding], list[relax.Expr]]:
    """The bindings of a function, in program order, and its results one by one."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    body = function.body.body
    if isinstance(body, relax.Tuple):
        return bindings, list(body.fields)
    if not isinstance(body.ty, tvm.ir.TupleType):
        return bindings, [body]
    fields = [relax.DataflowVar(f"{body.name}_{i}", ty) for i, ty in enumerate(body.ty.fields)]
    values = [relax.VarBinding(field, relax.TupleGetItem(body, i)) for i, field in enumerate(fields)]
    return [*bindings, *values], fields


def find_paths(bindings: Sequence[relax.Binding], wrt: Sequence[relax.Var], target: relax.Var) -> Paths:
    """The ways from `wrt` to `target` through `bindings`.

    Raises
    ------
    GradientError
        There is no way, or an operator on a way has no gradient: the error lists every one of them.
    """
    active = set(wrt)
    for binding in bindings:
        if _passes(binding.value) and has_floats(binding.var.ty) and not active.isdisjoint(variables(binding.value)):
            active.add(binding.var)
    if target not in active:
        raise GradientError(
            f"differentiate: the result {target.name!r} depends on none of {[var.name for var in wrt]} by way of "
            "floating-point tensors; expected a loss computed from them"
        )
    wanted = {target}
    rules: dict[str, Rule] = {}
    obstacles: Counter[str] = Counter()
    for binding in reversed(bindings):
        if binding.var in wanted:
            name = op_name(binding.value)
            row = get_gradient(name) if name is not None else None
            if row is not None and row.rule is not None:
                rules[row.name] = row.rule
            elif obstacle := _obstacle(binding.value, name, row):
                obstacles[obstacle] += 1
            wanted.update(active.intersection(variables(binding.value)))
    if obstacles:
        raise GradientError(_no_way(obstacles, target))
    return Paths(wanted, rules)


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


def _passes(value: relax.Expr) -> bool:
    """Whether small changes of what `value` reads can change it."""
    row = get_gradient(op_name(value) or "")
    return row is None or row.kind != "zero"


def _obstacle(value: relax.Expr, name: str | None, row: GradientRow | None) -> str | None:
    """Why no gradient passes through the value of a binding that has no rule; None where it only renames."""
    if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem):
        return None
    if not isinstance(value, relax.Call):
        return f"{type(value).__name__}: only straight-line programs are differentiated; choose values with relax.where"
    if name is None:
        return f"a call of {value.op}: pass differentiate(..., mod=...), where the function is"
    if row is None:
        return f"{name}: it has no row; add one with autocast.training.gradients.register_gradient"
    return f"{name}: {row.why}"


def _no_way(obstacles: Counter, target: relax.Var) -> str:
    lines = [f"  {obstacle} ({count} {'calls' if count > 1 else 'call'})" for obstacle, count in obstacles.items()]
    return f"differentiate: no gradient of {target.name!r} passes through\n" + "\n".join(lines)
