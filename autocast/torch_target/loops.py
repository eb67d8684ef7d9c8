"""Loops, which end when what they compute says so, as torch's `while_loop`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import tvm
from torch import fx
from torch.utils import _pytree as pytree
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir.views import structural_equal
from autocast.torch_target.asked import Value, torch_dtype
from autocast.torch_target.parts import Surroundings, as_modules, has_tensors_alone, of_its_own
from autocast.torch_target.recursion import Loop
from autocast.torch_target.scope import Scope


def looped(scope: Scope, loop: Loop, given: Sequence[Value]) -> Value:
    """The result of a loop: modules that take what its steps change, and what they read besides.

    Before::                          After::

        r = cls.loop(i, x, w)             r = while_loop(more_0, step_0, (i, x), (w,))
                                          # more_0: return i < 5
                                          # step_0: return (i + 1, x @ w)
    """
    carried = [loop.params[at] for at in loop.carried]
    _check(loop, carried)
    for var, value in zip(loop.params, given, strict=True):
        scope.bind(var, value)
    before = relax.BindingBlock(_varying(scope, loop, carried))
    more = relax.SeqExpr([before], loop.condition)
    step = relax.SeqExpr([before, *loop.step.blocks], loop.step.body)
    read = dict.fromkeys(var for part in (more, step) for var in relax.analysis.free_vars(part))
    fixed = {var: scope.values[var] for var in read if var in scope.values and var not in carried}
    outer = Surroundings(scope, fixed, [more, step])
    leaves, tree = pytree.tree_flatten([scope.values[var] for var in carried])
    states = list(map(scope.tracer.proxied, leaves))
    starts = _answer(scope, loop, more)

    asked, stepped = [_within(scope, carried, tree, outer) for _ in range(2)]
    asked.graph.output(of_its_own(asked, _answer(asked, loop, more)).node)
    results = pytree.tree_leaves(stepped.sequence(step))
    stepped.graph.output(tuple(of_its_own(stepped, result).node for result in results))
    parts = {"more": asked, "step": stepped}
    modules, tensors = as_modules(scope, parts, [*states, *outer.tensors], kept=len(states))
    arguments = (*modules, tuple(tensors[: len(states)]), tuple(tensors[len(states) :]))
    ended = scope.tracer.create_proxy("call_function", torch.ops.higher_order.while_loop, arguments, {})

    kinds = [str(type.dtype) for var in carried for type in _tensors(var.ty)]
    before_and_kind = zip(states, kinds, strict=True)
    after = [_with_gradient(starts, ended[at], *state) for at, state in enumerate(before_and_kind)]
    for var, value in zip(carried, pytree.tree_unflatten(after, tree), strict=True):
        scope.bind(var, value)
    return scope.sequence(relax.SeqExpr([before, *loop.after.blocks], loop.after.body))


def _check(loop: Loop, carried: Sequence[relax.Var]) -> None:
    """Raise an error where a step changes what torch's loop cannot carry."""
    for var, new in zip(carried, loop.step.body.ty.fields, strict=True):
        if not has_tensors_alone(var.ty):
            raise UnsupportedError(
                f"to_torch: a loop carries {var.name}, a {var.ty}, expected tensors: torch's while_loop carries "
                "nothing else from step to step"
            )
        if not structural_equal(var.ty, new, False, False):
            raise UnsupportedError(
                f"to_torch: a step of a loop makes a {new} of {var.name}, a {var.ty}, expected the same sizes: torch's "
                "while_loop carries no others. Carry a tensor of the largest size, and how much of it is in use"
            )


def _varying(scope: Scope, loop: Loop, carried: Sequence[relax.Var]) -> list[relax.Binding]:
    """What is computed before each decision, but for what is the same in each step: that is computed here."""
    varies, bindings = set(carried), []
    for binding in loop.before:
        if varies.isdisjoint(relax.analysis.free_vars(binding.value)):
            scope.convert(binding)
        else:
            varies.add(binding.var)
            bindings.append(binding)
    return bindings


def _within(scope: Scope, carried: Sequence[relax.Var], tree: Any, outer: Surroundings) -> Scope:
    """A part of the loop, which takes the states, and then what both parts read."""
    inner = scope.inner()
    names = [var.name for var in carried for _ in _tensors(var.ty)]
    taken = [inner.input(name) for name in names]
    for var, value in zip(carried, pytree.tree_unflatten(taken, tree), strict=True):
        inner.bind(var, value)
    outer.enter(inner)
    return inner


def _answer(scope: Scope, loop: Loop, more: relax.SeqExpr) -> fx.Proxy:
    """Whether there is another step."""
    answer = scope.tracer.proxied(scope.sequence(more))
    return answer if loop.goes_on else answer.logical_not()


def _with_gradient(starts: fx.Proxy, ended: fx.Proxy, state: fx.Proxy, dtype: str) -> fx.Proxy:
    """A state after the loop; of one that takes no step torch's gradients are those of one that takes a step."""
    return torch.where(starts, ended, state) if torch_dtype(dtype).is_floating_point else ended


def _tensors(type: tvm.ir.Type) -> Iterator[relax.TensorType]:
    """The tensors of a type, in order."""
    if isinstance(type, tvm.ir.TupleType):
        for field in type.fields:
            yield from _tensors(field)
    else:
        yield type
