"""Reverse-mode differentiation of a Relax function, over A-normal form.

The program is read once backwards. Every binding on a path from a variable of interest to the target passes the
adjoint of its result on to its arguments, by the rule of its operator (`autocast.training.gradients`). The result is
one function, forward and backward in one block, so that later passes see both.

Source: Griewank and Walther, "Evaluating Derivatives", 2008; for tensors in A-normal form, JAX's backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm
from tvm import relax

from autocast.errors import GradientError, OwnBackwardWarning
from autocast.ir import PlacedBuilder, dtype_of, op_name, place_of, shape_of
from autocast.ir.places import canonicalize_bindings
from autocast.ir.written_out import with_named_sizes
from autocast.messages import check_kind, check_value, is_whole, warn
from autocast.model.value import CONTROL_FLOW, OWN_BACKWARD
from autocast.training.adjoints import Adjoints
from autocast.training.building import new_block
from autocast.training.copying import emit_copies, new_branch, substituted
from autocast.training.gradients import Adjoint, Backward
from autocast.training.paths import (
    DIFFERENTIABLE,
    Paths,
    bindings_of,
    branches_of,
    find_paths,
    has_floats,
    inline_calls,
    straight_line,
    variables,
)


def differentiate(
    function: relax.Function,
    wrt: Sequence[relax.Var],
    *,
    target: int = 0,
    seed: relax.Expr | None = None,
    mod: tvm.IRModule | None = None,
) -> relax.Function:
    """A function that also returns the gradients of one of its results.

    Parameters
    ----------
    function : relax.Function
        A pure function in A-normal form. Shapes may be symbolic, values may be tuples, and there may be branches.
    wrt : sequence of relax.Var
        Parameters of `function` (or variables bound in it): floating-point tensors.
    target : int
        Which result to differentiate: a 0-d floating-point tensor.
    seed : relax.Expr, optional
        The adjoint of the target, a 0-d tensor of its dtype, such as another parameter of `function` (a loss scale).
        The default is 1.
    mod : tvm.IRModule, optional
        Where the functions that `function` calls are: they are inlined first.

    Returns
    -------
    relax.Function
        The same parameters and attributes; its result is the tuple (results..., gradients of `wrt`...). A variable that
        the target does not depend on has a gradient of zeros. The adjoint of `x` is bound to `x_grad`. Where a tensor
        has several uses, their adjoints are added in reverse program order: the last use comes first.

    Raises
    ------
    GradientError
        The target is not a 0-d floating-point tensor or depends on none of `wrt`, `wrt` are not floating-point tensors,
        or an operator on the way has no gradient: the error lists every one of them. Or `function` was imported from a
        torch module with control flow.

    Warns
    -----
    OwnBackwardWarning
        The source of `function` has a backward of its own, which is not kept.
    """
    check_kind("differentiate", function, relax.Function, GradientError, "a relax.Function, such as model.main")
    if not function.is_pure:
        raise GradientError("differentiate: the function has side effects; expected a pure one (R.function, is_pure)")
    _check_control_flow(function)
    _warn_of_backwards(function)
    if mod is not None:
        function = inline_calls(function, mod)
    function = with_named_sizes(function)
    bindings, results = straight_line(function)
    loss = _checked_target(results, target)
    _check_wrt(wrt)
    _check_seed(seed, loss)
    paths = find_paths(bindings, wrt, loss)

    builder = PlacedBuilder()
    with builder.function("main", list(function.params), attrs=dict(function.attrs or {})):
        with new_block(builder, function):
            for binding in bindings:
                builder.emit_normalized(binding)
            builder.place = place_of(loss)
            adjoints = Adjoints(builder, paths.wanted)
            adjoints.add(loss, relax.const(1.0, dtype_of(loss)) if seed is None else seed)
            _backward(bindings, paths, adjoints)
            gradients = [_gradient(adjoints.of(var), var.ty) for var in wrt]
            outputs = [_output(builder, result, getattr(result, "name", "result")) for result in results]
            outputs += [_output(builder, g, f"{v.name}_grad") for g, v in zip(gradients, wrt, strict=True)]
        builder.emit_func_output(outputs)
    return relax.transform.DeadCodeElimination()(canonicalize_bindings(builder.get()))["main"]


def _backward(bindings: list[relax.Binding], paths: Paths, adjoints: Adjoints) -> None:
    """Pass the adjoints of results on to arguments, from the last binding to the first, each in its binding's place."""
    refused: list[str] = []

    def wants(expr: relax.Expr) -> bool:
        return not paths.wanted.isdisjoint(variables(expr))

    for binding in reversed(bindings):
        adjoint = adjoints.of(binding.var) if binding.var in paths.wanted else None
        if adjoint is None:
            continue
        value = binding.value
        name = op_name(value) or ""
        place = place_of(binding.var)
        adjoints.builder.place = place._replace(forward=name, forward_result=binding.var.name) if name else place
        if isinstance(value, relax.If):
            _backward_if(binding, adjoint, paths, adjoints)
            continue
        if isinstance(binding, relax.MatchCast) and isinstance(adjoint, relax.Expr):
            adjoint = adjoints.builder.match_cast(adjoint, value.ty)  # the value's sizes may have other names
        if not isinstance(value, relax.Call):
            adjoints.add(value, adjoint)
            continue
        needs = tuple(map(wants, value.args))
        try:
            answers = paths.rules[name](Backward(value, binding.var, adjoint, needs, adjoints.builder.emit, wants))
        except GradientError as error:
            module = place_of(binding.var).module
            refused.append(f"  %{binding.var.name} = {name}{f' in {module}' if module else ''}: {error}")
            continue
        if len(answers) != len(value.args):
            raise GradientError(
                f"differentiate: the rule of {name} answered {len(answers)} adjoints for {len(value.args)} "
                "arguments; expected one for each, None where there is none"
            )
        for argument, needed, answer in zip(value.args, needs, answers, strict=True):
            if needed:
                adjoints.add(argument, answer)
    if refused:
        raise GradientError("differentiate: these calls have no gradient as they are\n" + "\n".join(refused))


def _backward_if(binding: relax.VarBinding, adjoint: Adjoint, paths: Paths, adjoints: Adjoints) -> None:
    """Pass the adjoint of an `If` on to what its branches read: by an `If` over the same condition.

    Nothing that a branch binds is seen outside of it, so each branch of the new `If` computes again what the old one
    did, and then goes backwards. Both return one adjoint for each variable that either reads: zeros where one does not.

    Before::                        The adjoints of x and y::

        if flag:                        if flag:
            a = R.exp(x)                    a1 = R.exp(x)
            b = R.multiply(a, y)            y1 = R.multiply(b_grad, a1)
                                            x1 = R.multiply(R.multiply(b_grad, y), a1)
                                            grads = (x1, y1)
        else:                           else:
            b = R.sin(x)                    grads = (R.multiply(b_grad, R.cos(x)), R.zeros(y))
    """
    value, builder = binding.value, adjoints.builder
    outer = [var for var in relax.analysis.free_vars(value) if var in paths.wanted]

    def backward(branch: relax.SeqExpr) -> relax.Expr:
        table: dict[relax.Var, relax.Expr] = {}
        bindings = emit_copies(builder, bindings_of(branch), table)
        wanted = {copy for var, copy in table.items() if var in paths.wanted}
        inner = Adjoints(builder, wanted.union(outer))
        inner.add(substituted(builder, branch.body, table), adjoint)
        _backward(bindings, Paths(inner.wanted, paths.rules), inner)
        return builder.emit(relax.Tuple([_gradient(inner.of(var), var.ty) for var in outer]), "grads")

    branches = [new_branch(builder, partial(backward, branch)) for branch in branches_of(value)]
    builder.place = place_of(binding.var)
    grads = builder.emit(relax.If(value.cond, *branches), f"{binding.var.name}_grads")
    for index, var in enumerate(outer):
        adjoints.add(var, relax.TupleGetItem(grads, index))


def _check_control_flow(function: relax.Function) -> None:
    """GradientError where the source's `detach` and `no_grad` are lost: their gradients would be wrong silently."""
    names = [str(name) for name in (function.attrs or {}).get(CONTROL_FLOW, ())]
    if names:
        is_derivative = any(name in ("torch.autograd.grad", "torch.func") for name in names)
        remedy = (
            "Train it in torch, and import what was trained"
            if is_derivative
            else "Choose by torch.where, or train by torch.compile(module, backend='autocast')"
        )
        raise GradientError(
            f"differentiate: the torch module computes by {', '.join(names)}, and torch.export does not tell where "
            f"gradients stop (detach, no_grad) in the functions that these call; expected a module without. {remedy}"
        )


def _warn_of_backwards(function: relax.Function) -> None:
    names = [str(name) for name in (function.attrs or {}).get(OWN_BACKWARD, ())]
    if names:
        warn(
            f"differentiate: {', '.join(names)} computes with a backward of its own (an autograd.Function), which no "
            "import keeps; expected operators alone: the gradient is that of its forward. Where the two differ, write "
            "x + (f(x) - x).detach() for a gradient that passes f unchanged, or train by "
            "torch.compile(module, backend='autocast'), which keeps it",
            OwnBackwardWarning,
        )


def _output(builder: relax.BlockBuilder, value: relax.Expr, name: str) -> relax.Var:
    """A variable of exactly this name, which the function may return."""
    value = builder.normalize(value)
    var = relax.Var(name, value.ty, value.span if isinstance(value, relax.Var) else None)
    builder.emit_normalized(relax.VarBinding(var, value))
    return var


def _gradient(adjoint: Adjoint, ty: tvm.ir.Type) -> relax.Expr:
    """An adjoint as an expression of the type `ty`: zeros where there is none."""
    if isinstance(ty, tvm.ir.TupleType):
        fields = (None,) * len(ty.fields) if adjoint is None else adjoint
        return relax.Tuple([_gradient(field, part) for field, part in zip(fields, ty.fields, strict=True)])
    return relax.op.zeros(ty.shape, str(ty.dtype)) if adjoint is None else adjoint


def _checked_target(results: list[relax.Expr], target: int) -> relax.Var:
    check_value(
        "differentiate",
        "target",
        target,
        lambda at: is_whole(at) and 0 <= at < len(results),
        GradientError,
        f"the position of one of the function's results: below {len(results)}",
    )
    loss = results[target]
    if not isinstance(loss, relax.Var) or shape_of(loss) != () or dtype_of(loss) not in DIFFERENTIABLE:
        raise GradientError(
            f"differentiate: the target is a {loss.ty}; expected a 0-d floating-point tensor. Reduce it first, with a "
            "mean say"
        )
    return loss


def _check_wrt(wrt: Sequence[relax.Var]) -> None:
    variables = "relax.Vars of the function, such as model.main.params[1:]"
    check_value("differentiate", "wrt", wrt, lambda given: all(map(_is_var, given)), GradientError, variables)
    wrong = {var.name: str(var.ty) for var in wrt if not isinstance(var.ty, relax.TensorType) or not has_floats(var.ty)}
    if wrong or not wrt:
        raise GradientError(
            f"differentiate: got wrt={wrong or 'an empty list'}; expected one floating-point tensor or more"
        )


def _is_var(value: object) -> bool:
    return isinstance(value, relax.Var)


def _check_seed(seed: relax.Expr | None, loss: relax.Var) -> None:
    check_kind("differentiate: seed", seed, relax.Expr | None, GradientError, f"a {loss.ty}, as the target is")
    if seed is not None and (shape_of(seed) != () or dtype_of(seed) != dtype_of(loss)):
        raise GradientError(f"differentiate: the seed is a {seed.ty}; expected a {loss.ty}, as the target is")
