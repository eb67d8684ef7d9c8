"""Branches and loops that are decided when a model runs: `If`, and loops as functions that call themselves.

    def loop(level, goes_on, states..., captured...):     # takes up to 2 ** level steps; all of them below 0
        if goes_on:
            if level == 0:
                r = step(states..., captured...)          # whether it goes on, and the states after it
            else:
                part = loop(abs(level) - 1, goes_on, states..., captured...)
                r = loop(level - 1, part..., captured...)
        else:
            r = (goes_on, states...)
        return r

A function that called itself once for each step would need as many frames on the stack as there are steps, and end the
process after some thousand. Of this one the stack has twice as many as a number of steps has bits: from START on it
takes 1, 2, 4 steps and so on, and of a part one half after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax import op

from autocast.ir import with_new_variables
from autocast.operators import own

#: The level of all steps.
START = -1

#: From the states, and what is captured, to whether there is another step, and the states after this one.
Step: TypeAlias = Callable[[Sequence[relax.Expr], Sequence[relax.Expr]], Sequence[relax.Expr]]

#: From the number of a step, the states before it, and what is captured, to the states after it, and its rows.
CountedStep: TypeAlias = Callable[
    [relax.Expr, Sequence[relax.Expr], Sequence[relax.Expr]], tuple[Sequence[relax.Expr], Sequence[relax.Expr]]
]


def sequence(builder: relax.BlockBuilder, make: Callable[[], relax.Expr]) -> relax.SeqExpr:
    """What is emitted to make an expression, and a variable for it."""
    builder._begin_binding_block()
    try:
        result = builder.emit(make())
    finally:
        block = builder._end_block()
    return relax.SeqExpr([block], result)


def fields_of(builder: relax.BlockBuilder, values: relax.Expr) -> list[relax.Var]:
    """Variables for the fields of a tuple."""
    whole = builder.emit(values)
    return [builder.emit(relax.TupleGetItem(whole, at)) for at in range(len(whole.ty.fields))]


def looped(
    builder: relax.BlockBuilder,
    name: str,
    goes_on: relax.Expr,
    states: Sequence[relax.Expr],
    captured: Sequence[relax.Expr],
    step: Step,
) -> list[relax.Var]:
    """The states after all steps of a loop, whose function is added to the module."""
    given = [relax.const(START, "int64"), goes_on, *states]
    _, *after = fields_of(builder, relax.Call(_function(builder, name, given, captured, step), [*given, *captured]))
    return after


def looped_with_rows(
    builder: relax.BlockBuilder,
    name: str,
    count: Any,
    states: Sequence[relax.Expr],
    rows: Sequence[relax.Expr],
    captured: Sequence[relax.Expr],
    step: CountedStep,
    backwards: Sequence[int],
) -> tuple[list[relax.Var], list[relax.Var]]:
    """The states after `count` steps, and `rows` with those of each step in them.

    Parameters
    ----------
    count
        A number, or an expression in the names of dimensions that shapes in `captured` have.
    rows
        Tensors of `count` rows, which are all written.
    backwards
        For each of them whether the first step writes its last row.
    """
    emit, start, one = builder.emit, relax.const(0, "int64"), relax.const(1, "int64")

    def turn(carried: Sequence[relax.Expr], outer: Sequence[relax.Expr]) -> list[relax.Expr]:
        number, *others = carried
        after, made = step(number, others[: len(states)], outer)
        place = op.subtract(counted(builder, count, -1), number) if any(backwards) else number
        places = [emit(op.reshape(place if back else number, [1])) for back in backwards]
        written = [
            emit(own.index_copy(whole, at, emit(op.expand_dims(row, 0)), axis=0))
            for whole, at, row in zip(others[len(states) :], places, made, strict=True)
        ]
        following = emit(op.add(number, one))
        return [emit(op.less(following, counted(builder, count))), following, *after, *written]

    first = emit(op.less(start, counted(builder, count)))
    _, *results = looped(builder, name, first, [start, *states, *rows], captured, turn)
    return results[: len(states)], results[len(states) :]


def counted(builder: relax.BlockBuilder, count: Any, more: int = 0) -> relax.Expr:
    """A number or an expression of sizes as a tensor without axes, and so many more."""
    if isinstance(count, int):
        return relax.const(count + more, "int64")
    return builder.emit(op.reshape(op.shape_to_tensor(relax.ShapeExpr([count + more])), []))


def called(
    builder: relax.BlockBuilder,
    name: str,
    given: Sequence[relax.Expr],
    make: Callable[[Sequence[relax.Expr]], Sequence[relax.Expr]],
) -> list[relax.Var]:
    """What is made of `given`, by a function of its own: so it may have branches wherever it is called."""
    params = [relax.Var(f"given_{at}", value.ty) for at, value in enumerate(given)]
    builder.begin_scope(params)
    try:
        body = builder.normalize(sequence(builder, lambda: relax.Tuple(list(make(params)))))
    finally:
        builder.end_scope()
    function = builder.add_func(with_new_variables(relax.Function(params, body, body.ty)), name)
    return fields_of(builder, relax.Call(function, list(given)))


def _function(
    builder: relax.BlockBuilder, name: str, given: Sequence[relax.Expr], captured: Sequence[relax.Expr], step: Step
) -> tvm.ir.GlobalVar:
    names = ["level", "goes_on", *(f"state_{at}" for at in range(len(given) - 2))]
    level, goes_on, *states = taken = [relax.Var(one, value.ty) for one, value in zip(names, given, strict=True)]
    outer = [relax.Var(f"outer_{at}", value.ty) for at, value in enumerate(captured)]
    params, result = [*taken, *outer], tvm.ir.TupleType([var.ty for var in taken[1:]])
    unknown = relax.Function(params, relax.SeqExpr([], relax.Tuple(taken[1:])), result)
    # A number of its own: a builder takes a function for another one that is equal, as a loop's in a loop may be.
    unknown = unknown.with_attr("number", len(builder.get().functions))
    function = builder.add_func(with_new_variables(unknown), name)

    def twice() -> relax.Expr:
        one = relax.const(1, "int64")
        below, rest = builder.emit(op.subtract(op.abs(level), one)), builder.emit(op.subtract(level, one))
        part = fields_of(builder, relax.Call(function, [below, goes_on, *states, *outer]))
        return relax.Call(function, [rest, *part, *outer])

    def steps() -> relax.Expr:
        once = sequence(builder, lambda: relax.Tuple(list(step(states, outer))))
        is_last = builder.emit(op.equal(level, relax.const(0, "int64")))
        return relax.If(is_last, once, sequence(builder, twice))

    builder.begin_scope(params)
    try:
        done = sequence(builder, partial(relax.Tuple, taken[1:]))
        body = sequence(builder, lambda: relax.If(goes_on, sequence(builder, steps), done))
        made = relax.Function(params, builder.normalize(body), result)
    finally:
        builder.end_scope()
    builder.update_func(function, with_new_variables(made))
    return function
