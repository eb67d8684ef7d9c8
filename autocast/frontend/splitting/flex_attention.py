"""torch's flex_attention, whose scores a function of the author's changes, written out while a program is split."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._higher_order_ops.flat_apply import flat_apply
from torch._higher_order_ops.flex_attention import flex_attention
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def written_flex_attention(program: ExportedProgram) -> contextlib.AbstractContextManager[Any]:
    """While this is active, calls of torch's operator `flex_attention` in a program are calls of what it computes."""
    parts = [part for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    if not any(part.graph.find_nodes(op="call_function", target=flex_attention) for part in parts):
        return contextlib.nullcontext()
    for node in program.graph.find_nodes(op="call_function", target=flex_attention):
        score_mod, mask_mod = node.args[3], node.args[4][-1]
        _prepare(getattr(program.graph_module, score_mod.target), places=slice(1, 5))
        _prepare(getattr(program.graph_module, mask_mod.target), places=slice(0, 4))
    return _Written()


class _Written(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = _attend if func is flex_attention else func
        return called(*args, **(kwargs or {}))


def _prepare(function: fx.GraphModule, places: slice) -> None:
    """Make a function of scores or places one that torch 2.13 can map over all places.

    A number that an index is made of, as 0 in `table[head, 0]`, is a constant that the split program does not have, and
    an index by several tensors of which some depend on places must not have others that do not.
    """
    graph = function.graph
    for node in graph.find_nodes(op="get_attr"):
        value = getattr(function, node.target)
        if isinstance(value, torch.Tensor) and not value.dim():
            with graph.inserting_before(node):
                node.replace_all_uses_with(
                    graph.call_function(aten.full.default, ([], value.item()), {"dtype": value.dtype})
                )
            graph.erase_node(node)
            delattr(function, node.target)
    depending = _depending(graph, list(graph.nodes)[places])
    for node in graph.find_nodes(op="call_function", target=flat_apply):
        indices = [arg for arg in node.args if isinstance(arg, fx.Node) and arg.op != "get_attr"][1:]
        if placed := [index for index in indices if index in depending]:
            with graph.inserting_before(node):
                zero = graph.call_function(aten.mul.Scalar, (placed[0], 0))
                for index in set(indices) - depending:
                    node.replace_input_with(index, graph.call_function(aten.add.Tensor, (index, zero)))
    function.recompile()


def _depending(graph: fx.Graph, starts: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes that depend on some of `starts`, and these."""
    depending = set(starts)
    for node in graph.nodes:
        if not depending.isdisjoint(node.all_input_nodes):
            depending.add(node)
    return depending


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: fx.GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: object,
    score_tensors: Sequence[torch.Tensor] = (),
    mask_tensors: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attended values; of each query's scores the logarithm to base 2 of the sum of exp, and the largest over ln 2.

    `score_mod` makes another score of a score, of where it is (batch, head, query, key), and of tensors; the last part
    of `block_mask` says of a place whether the query sees the key there. Which blocks these are says nothing more. A
    function that only adds to scores, or hides some, is the bias of `scaled_dot_product_attention`. Of the three
    results, those that nobody reads leave the program again.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    sizes = (*query.shape[:3], key.shape[2])
    scores = (query.to(wide) @ keys.to(wide).mT) * scale
    seen = _at_all_places(block_mask[-1], sizes, (), mask_tensors)
    changed = _at_all_places(score_mod, sizes, (scores,), score_tensors).masked_fill(~seen, -math.inf)
    if _only_adds(score_mod.graph):
        added = _at_all_places(score_mod, sizes, (scores.new_zeros(()),), score_tensors)
        bias = torch.where(seen, added, -math.inf)
        attended = F.scaled_dot_product_attention(query, keys, values, bias, scale=scale)
    else:
        hidden = (changed == -math.inf).all(-1, keepdim=True)
        attended = changed.softmax(-1).masked_fill(hidden, 0).to(value.dtype) @ values
    return attended, changed.logsumexp(-1) / math.log(2), changed.amax(-1) / math.log(2)


#: Operators whose results do not depend on a tensor that they are given: masks of torch's begin with these.
_MAKING = {aten.new_ones.default, aten.new_zeros.default}


def _at_all_places(
    function: fx.GraphModule, sizes: Sequence[int], score: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """What a function computes for each batch, head, query and key; of size 1 along those that it does not ask for."""
    asked = list(function.graph.nodes)[len(score) : len(score) + 4]
    along = [not {user.target for user in node.users} <= _MAKING or any(part.dim() for part in score) for node in asked]
    mapped: Callable[..., torch.Tensor] = function
    for axis in (axis for axis in (3, 2, 1, 0) if along[axis]):
        scores = [0 if part.dim() else None for part in score]
        places = [0 if place == axis else None for place in range(4)]
        mapped = torch.vmap(mapped, (*scores, *places, *(None for _ in tensors)))
    numbers = [
        torch.arange(size) if along[axis] else torch.zeros((), dtype=torch.int64) for axis, size in enumerate(sizes)
    ]
    return mapped(*score, *numbers, *tensors).reshape([size if along[axis] else 1 for axis, size in enumerate(sizes)])


#: Which arguments of an operator may be a score that it adds to, or that it makes -inf somewhere.
_ADDING: dict[Any, tuple[int, ...]] = {
    aten.add.Tensor: (0, 1),
    aten.sub.Tensor: (0,),
    aten.where.ScalarOther: (1,),
    aten.where.ScalarSelf: (2,),
    aten.masked_fill.Scalar: (0,),
}


def _only_adds(graph: fx.Graph) -> bool:
    """Whether a function adds to a score, its first argument, what does not depend on it, or makes it -inf."""
    score = next(iter(graph.nodes))
    depending = _depending(graph, [score])
    node = graph.output_node().args[0]
    while node is not score:
        places = [place for place, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg in depending]
        if len(places) != 1 or places[0] not in _ADDING.get(node.target, ()) or node.kwargs:
            return False
        if node.target not in (aten.add.Tensor, aten.sub.Tensor) and -math.inf not in node.args:
            return False
        node = node.args[places[0]]
    return True
