"""What a training step does with gradients: the factors that clip and unscale them, and an update of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count

import tvm
from tvm import relax

from autocast import ir
from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.model.step import STEP
from autocast.operators.own import share
from autocast.training.clipping import clip_factor, is_finite, squared_norm
from autocast.training.optimizers.functions import Guards, update_function, update_name
from autocast.training.optimizers.optimizer import Optimizer
from autocast.training.options import Options
from autocast.training.parallel.zero import gathered, share_type, total_over_ranks

op = relax.op


def slot_name(slot: str, name: str) -> str:
    """What a training step calls the slot (such as `exp_avg`) of the parameter `name`."""
    return f"{slot}/{name}"


def update(
    builder: ir.PlacedBuilder,
    optimizer: Optimizer,
    trained: Mapping[str, relax.Var],
    gradients: Sequence[relax.Expr],
    learning_rate: relax.Expr,
    state: Mapping[str, relax.Var],
    moved: Mapping[str, tuple[relax.Var, relax.Expr]],
    options: Options,
) -> dict[str, relax.Expr]:
    """Emit the updates, in float32 whatever the policy; what replaces each parameter and each state, by name.

    Parameters
    ----------
    trained : mapping
        The parameters that training changes, by name; `gradients` are theirs, in this order.
    learning_rate : Expr
        0-d float32.
    state : mapping
        What the step keeps from call to call, by name: see `training_step`.
    moved : mapping
        What the model's own code updates, by name: what it was, and what it would be.
    """
    builder.place = ir.Place("", "float32")
    guards, new = _guards(builder, gradients, state, options)
    step = builder.emit(state[STEP] + relax.const(1, "int64"), "step")
    for name, (old, value) in {STEP: (state[STEP], step), **moved}.items():
        is_guarded = guards.finite is not None and name != RANDOM_STATE
        new[name] = op.where(guards.finite, value, old) if is_guarded else value
    count_of_steps = builder.emit(op.astype(step, "float64"))
    scalars: dict[str, dict[str, relax.Expr]] = {}
    functions: dict[str, tvm.ir.GlobalVar] = {}
    shares = options.shares
    over_ranks = partial(total_over_ranks, shares=shares)
    for (name, var), gradient in zip(trained.items(), gradients, strict=True):
        rule = optimizer.of(name)
        part, own = share_type(var.ty, shares), var
        if repr(rule) not in scalars:
            values = rule.scalars(count_of_steps)
            scalars[repr(rule)] = {title: builder.emit(value, title) for title, value in values.items()}
        shared = scalars[repr(rule)]
        if shares > 1:
            own = builder.emit(share(var, count=shares), f"{var.name}_share")
        key = f"{rule!r} {part}"
        if key not in functions:
            function = update_function(rule, part, tuple(shared), guards, over_ranks)
            functions[key] = builder.add_func(function, _unused(update_name(rule, part), functions.values()))
        slots = [state[slot_name(slot, name)] for slot in rule.slots]
        arguments = [own, gradient, *slots, learning_rate, *shared.values(), *guards.arguments]
        result = builder.emit(relax.Call(functions[key], arguments), f"{var.name}_update")
        for index, target in enumerate((name, *(slot_name(slot, name) for slot in rule.slots))):
            new[target] = relax.TupleGetItem(result, index)
    if options.parallel is not None and shares > 1:
        new |= gathered(builder, new, trained, shares, options.parallel.bucket_mib)
    return new


def _unused(name: str, functions: Iterable[tvm.ir.GlobalVar]) -> str:
    """`name`, with a number after it where another group's function has it: `adamw_768_1`."""
    taken = {function.name_hint for function in functions}
    numbered = (f"{name}_{number}" for number in count(1))
    return next(each for each in chain([name], numbered) if each not in taken)


def _guards(
    builder: relax.BlockBuilder, gradients: Sequence[relax.Expr], state: Mapping[str, relax.Var], options: Options
) -> tuple[Guards, dict[str, relax.Expr]]:
    """What updates read besides their gradients, and what replaces the state of loss scaling."""
    clip_norm, loss_scaling = options.clip_norm, options.loss_scaling
    share = relax.const(1.0 / options.accumulate, "float32")
    factor = None if options.accumulate == 1 else builder.emit(share, "share")
    if clip_norm is None and loss_scaling is None:
        return Guards(factor), {}
    squared = total_over_ranks(builder, squared_norm(builder, gradients), options.shares)
    if loss_scaling is not None:
        factor = builder.emit(share / state["loss_scale"], "unscale")
    if clip_norm is not None:
        norm = op.sqrt(squared) if factor is None else op.sqrt(squared) * factor
        clip = clip_factor(norm, clip_norm)
        factor = builder.emit(clip if factor is None else factor * clip, "factor")
    if loss_scaling is None:
        return Guards(factor), {}
    finite = builder.emit(is_finite(squared), "finite")
    return Guards(factor, finite), loss_scaling.update(builder, dict(state), finite)
