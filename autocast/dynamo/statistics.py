"""Backward operators that read no statistics: ours compute again what torch's would keep of the forward ones.

torch's norms keep means and deviations for their backward operators, and its pooling the places of maxima; ours return
none of them. So in the joint graph, before it is cut into a forward and a backward part,

    y, mean, rstd = native_layer_norm(x, shape, weight, bias, eps)
    dx, dw, db = native_layer_norm_backward(dy, x, shape, mean, rstd, weight, bias, mask)

becomes a call of an operator of ours, and nothing but `y` is read:

    dx, dw, db = autocast.layer_norm_backward(dy, x, shape, weight, eps)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_library = torch.library.Library("autocast", "DEF")


def define(schema: str, fake: Callable[..., Any]) -> torch._ops.OpOverload:
    """An operator that graphs may hold, and that converters translate: torch itself cannot run it."""
    name = schema.partition("(")[0]
    _library.define(schema)
    torch.library.register_fake(f"autocast::{name}", fake, lib=_library)
    operator_: torch._ops.OpOverload = getattr(torch.ops.autocast, name).default
    return operator_


def _of_norm(x: torch.Tensor, weight: torch.Tensor | None, shape: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What a norm's backward operator returns: adjoints of the data, the scale and the shift, in their dtypes."""
    like = x if weight is None else weight
    return x.new_empty(x.shape), like.new_empty(shape), like.new_empty(shape)


LAYER_NORM = define(
    "layer_norm_backward(Tensor grad, Tensor input, SymInt[] shape, Tensor? weight, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    lambda grad, x, shape, weight, eps: _of_norm(x, weight, shape),
)

GROUP_NORM = define(
    "group_norm_backward(Tensor grad, Tensor input, Tensor? weight, int groups, float eps) -> (Tensor, Tensor, Tensor)",
    lambda grad, x, weight, groups, eps: _of_norm(x, weight, [x.shape[1]]),
)

#: Of statistics of the batch where no running ones are given.
BATCH_NORM = define(
    "batch_norm_backward(Tensor grad, Tensor input, Tensor? weight, Tensor? mean, Tensor? variance, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    lambda grad, x, weight, mean, variance, eps: _of_norm(x, weight, [x.shape[1]]),
)

MAX_POOL = define(
    "max_pool2d_backward(Tensor grad, Tensor input, int[] kernel, int[] stride, int[] padding, int[] dilation,"
    " bool ceil_mode) -> Tensor",
    lambda grad, x, kernel, stride, padding, dilation, ceil_mode: grad.new_empty(x.shape),
)


def without_statistics(joint: fx.GraphModule) -> None:
    """Have the joint graph call our backward operators wherever torch's read what a forward operator kept."""
    for target, rewritten in _REWRITTEN.items():
        for node in joint.graph.find_nodes(op="call_function", target=target):
            call = rewritten(node)
            if call is None:
                continue
            with joint.graph.inserting_before(node):
                made = joint.graph.call_function(*call)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            joint.graph.erase_node(node)
    joint.recompile()


def without_running_ones(joint: fx.GraphModule) -> None:
    """Have what is computed again in the backward part normalize by statistics of the batch alone: the forward part
    has moved the running ones by then.

    Before::                                                     After::

        y, m, r, mean, variance = batch_norm(x, running...)          _, _, _, mean, variance = batch_norm(x, running...)
                                                                     y, m, r = batch_norm.no_stats(x)  # again later
    """
    for node in joint.graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default):
        x, weight, bias, _, _, train, momentum, eps = node.args
        if not train or "recompute" not in node.meta:
            continue
        with joint.graph.inserting_after(node):
            arguments = x, weight, bias, True, momentum, eps
            apart = joint.graph.call_function(aten._native_batch_norm_legit.no_stats, arguments)
        apart.meta = {**node.meta, "val": node.meta["val"][:3]}
        del node.meta["recompute"]
        for user in list(node.users):
            if user.args[1] < 3:
                user.replace_input_with(node, apart)
            else:
                user.meta.pop("recompute", None)


def _forward(kept: Any, target: Any) -> fx.Node | None:
    """The call of `target` that a value was kept of; None where it comes from elsewhere."""
    while isinstance(kept, fx.Node) and kept.target in (aten.detach.default, aten.alias.default):
        kept = kept.args[0]
    if not isinstance(kept, fx.Node) or kept.target is not operator.getitem:
        return None
    call: Any = kept.args[0]
    return call if call.target is target else None


def _layer_norm(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    grad, x, shape, mean, _, weight, *_ = node.args
    forward = _forward(mean, aten.native_layer_norm.default)
    return None if forward is None else (LAYER_NORM, (grad, x, shape, weight, forward.args[4]))


def _group_norm(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    grad, x, mean, _, weight, _, _, _, groups, _ = node.args
    forward = _forward(mean, aten.native_group_norm.default)
    return None if forward is None else (GROUP_NORM, (grad, x, weight, groups, forward.args[7]))


def _batch_norm(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    grad, x, weight, mean, variance, _, _, train, eps, _ = node.args
    return BATCH_NORM, (grad, x, weight, *((None, None) if train else (mean, variance)), eps)


def _max_pool(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    *arguments, places = node.args
    forward = _forward(places, aten.max_pool2d_with_indices.default)
    return None if forward is None else (MAX_POOL, tuple(arguments))


#: torch's backward operators -> what is called instead, and with what.
_REWRITTEN: dict[torch._ops.OpOverload, Callable[[fx.Node], tuple[Any, tuple[Any, ...]] | None]] = {
    aten.native_layer_norm_backward.default: _layer_norm,
    aten.native_group_norm_backward.default: _group_norm,
    aten.native_batch_norm_backward.default: _batch_norm,
    aten.max_pool2d_with_indices_backward.default: _max_pool,
}
