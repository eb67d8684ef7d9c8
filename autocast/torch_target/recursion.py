"""Functions that call themselves as the last thing that they do: what each step of such a loop computes.

There are two forms. That of a function which was written as a loop:

    def loop(i, x, w):
        more = i < 5                    # before
        if more:
            r = loop(i + 1, x @ w, w)   # a step
        else:
            r = x                       # after
        return r

and that of `autocast.frontend.importing.loops`, which calls itself twice, so that a stack has room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import tvm
from tvm import relax

from autocast.ir import all_bindings, is_op, number_of, parts_of, with_new_variables


@dataclass(frozen=True)
class Loop:
    """A function that calls itself last.

    Attributes
    ----------
    params : list of relax.Var
    before : list of relax.Binding
        What is computed before each decision.
    condition : relax.Expr
        What is decided by.
    goes_on : bool
        Whether there is another step where the condition holds, or where it does not.
    step : relax.SeqExpr
        What `carried` are after a step: a tuple.
    carried : list of int
        The parameters that a step changes.
    after : relax.SeqExpr
        The result, where there is no step.
    """

    params: list[relax.Var]
    before: list[relax.Binding]
    condition: relax.Expr
    goes_on: bool
    step: relax.SeqExpr
    carried: list[int]
    after: relax.SeqExpr


def loop_of(function: relax.Function, itself: tvm.ir.GlobalVar) -> Loop | None:
    """A function as a loop, with variables of its own; None where it calls itself otherwise than last."""
    if not any(_is_call(binding.value, itself) for binding in all_bindings(function.body)):
        return None
    function = with_new_variables(function)
    before, decision = _last(function.body)
    if not isinstance(decision, relax.If) or any(_calls(binding.value, itself) for binding in before):
        return None
    params, ways = list(function.params), (decision.true_branch, decision.false_branch)
    for goes_on, (again, after) in ((True, ways), (False, ways[::-1])):
        found = _step(again, params, itself)
        if found is None and goes_on and any(decision.cond.same_as(param) for param in params[1:2]):
            found = _halved_step(again, after, params, itself)
        if found is not None and not _calls(after, itself):
            return Loop(params, before, decision.cond, goes_on, *found, after)
    return None


def _step(
    branch: relax.SeqExpr, params: Sequence[relax.Var], itself: tvm.ir.GlobalVar
) -> tuple[relax.SeqExpr, list[int]] | None:
    """The step, and what it changes, of a branch whose last thing is to call the function."""
    bindings, call = _last(branch)
    if not _is_call(call, itself) or any(_calls(binding.value, itself) for binding in bindings):
        return None
    carried = [at for at, (param, arg) in enumerate(zip(params, call.args, strict=True)) if not param.same_as(arg)]
    return _sequence(bindings, relax.Tuple([call.args[at] for at in carried])), carried


def _halved_step(
    branch: relax.SeqExpr, after: relax.SeqExpr, params: Sequence[relax.Var], itself: tvm.ir.GlobalVar
) -> tuple[relax.SeqExpr, list[int]] | None:
    """As `_step`, of what `autocast.frontend.importing.loops` made: the step is what it does where the level is 0."""
    bindings, decision = _last(branch)
    if not isinstance(decision, relax.If):
        return None
    is_zero = next((binding.value for binding in bindings if binding.var.same_as(decision.cond)), decision.cond)
    if not (is_op(is_zero, "relax.equal") and is_zero.args[0].same_as(params[0]) and number_of(is_zero.args[1]) == 0):
        return None
    step, result = _last(decision.true_branch)
    carried = list(range(1, 1 + len(result.ty.fields)))
    if _meaning(after, params, carried, itself) != carried:
        return None
    if _meaning(decision.false_branch, params, carried, itself) != _ALL:
        return None
    others = [binding for binding in bindings if not binding.var.same_as(decision.cond)]
    return _sequence([*others, *step], result), carried


#: What is after a part of the steps, and after all.
_PART, _ALL = "after a part of the steps", "after all steps"


def _meaning(
    branch: relax.SeqExpr, params: Sequence[relax.Var], carried: Sequence[int], itself: tvm.ir.GlobalVar
) -> object:
    """What a branch returns: the places of parameters, fields of `_PART`, or `_ALL`; None of all else."""
    known: dict[relax.Var, object] = {param: at for at, param in enumerate(params)}
    outer = list(range(1 + len(carried), len(params)))

    def meaning(expr: relax.Expr) -> object:
        if isinstance(expr, relax.Var):
            return known.get(expr)
        if isinstance(expr, relax.Tuple):
            return list(map(meaning, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return meaning(expr.tuple_value), expr.index
        if is_op(expr, "relax.subtract") and number_of(expr.args[1]) == 1:
            return meaning(expr.args[0]), "below"
        if is_op(expr, "relax.abs"):
            return meaning(expr.args[0]), "without its sign"
        if not _is_call(expr, itself):
            return None
        given = list(map(meaning, expr.args))
        if given == [((0, "without its sign"), "below"), *carried, *outer]:
            return _PART
        return _ALL if given == [(0, "below"), *((_PART, at - 1) for at in carried), *outer] else None

    bindings, result = _last(branch)
    for binding in bindings:
        known[binding.var] = meaning(binding.value)
    return meaning(result)


def _last(sequence: relax.SeqExpr) -> tuple[list[relax.Binding], relax.Expr]:
    """All but the last thing that a sequence computes, and that."""
    bindings = list(chain.from_iterable(block.bindings for block in sequence.blocks))
    result = sequence.body
    while bindings and isinstance(bindings[-1], relax.VarBinding) and bindings[-1].var.same_as(result):
        result = bindings.pop().value
    return bindings, result


def _sequence(bindings: list[relax.Binding], result: relax.Expr) -> relax.SeqExpr:
    return relax.SeqExpr([relax.BindingBlock(bindings)], result)


def _is_call(expr: relax.Expr, itself: tvm.ir.GlobalVar) -> bool:
    callee = expr.op if isinstance(expr, relax.Call) else None
    return isinstance(callee, tvm.ir.GlobalVar) and callee.name_hint == itself.name_hint


def _calls(expr: relax.Expr, itself: tvm.ir.GlobalVar) -> bool:
    return any(_is_call(call, itself) for call in parts_of(expr, relax.Call))
