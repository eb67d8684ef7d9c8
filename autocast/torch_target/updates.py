"""What a training step does to its state, in as few passes over memory as torch's operators for CPUs take.

Optimizers multiply, add and copy, one operator after the other, over all parameters: of a step of Llama's two layers
and its embeddings that was a third.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from autocast.torch_target.eager import kind_of
from autocast.torch_target.folding import has_effect
from autocast.torch_target.linear import is_method

_ADDS = {torch.add: 1, operator.add: 1, torch.sub: -1, operator.sub: -1}
_FUSED = (torch.add, torch.sub, torch.addcmul)

#: Methods whose results may lie in the memory of what they are called for.
_VIEWS = ("detach", "expand", "permute", "reshape", "squeeze", "to", "unsqueeze", "view")


def fuse_updates(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Rewrite a graph that torch will run on a CPU, operator by operator, and whose calls change parameters.

    Before::                                  After::

        a = momentum * 0.9                    m = torch.add(gradient, momentum, alpha=0.9, out=momentum)
        m = a + gradient                      p = torch.addcmul(weight, rate, m, value=-1, out=weight)
        b = rate * m
        p = weight - b
        weight.copy_(p)
        momentum.copy_(m)

    State is written at the end, as before: a call that fails on its way leaves it as it was.

    Parameters
    ----------
    root : torch.nn.Module
        Holds what the graph reads and writes.
    graph : torch.fx.Graph
    """
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in _ADDS]:
        if (kind := kind_of(node)) is not None and kind[1] == "float32":
            _add_a_multiple(graph, node)
    graph.eliminate_dead_code(has_effect)
    _write_in_place(root, graph)


def _add_a_multiple(graph: fx.Graph, node: fx.Node) -> None:
    """One operator for a tensor plus, or minus, another one times a number."""
    sign, operands = _ADDS[node.target], list(node.args)
    for place in (1, 0) if sign == 1 else (1,):
        product, other = operands[place], operands[1 - place]
        if not _is_product(product) or not kind_of(other) == kind_of(product) == kind_of(node):
            continue
        for factor, x in (product.args, product.args[::-1]):
            if kind_of(x) != kind_of(node):
                continue
            with graph.inserting_before(node):
                if isinstance(factor, float):
                    result = graph.call_function(torch.add, (other, x), {"alpha": sign * factor})
                elif kind_of(factor) == ((), "float32"):
                    result = graph.call_function(torch.addcmul, (other, factor, x), {"value": sign})
                else:
                    continue
            result.meta.update(node.meta)
            node.replace_all_uses_with(result)
            return


def _is_product(value: Any) -> bool:
    is_call = isinstance(value, fx.Node) and value.op == "call_function" and value.target in (torch.mul, operator.mul)
    return is_call and len(value.users) == 1


class _Update(NamedTuple):
    """A tensor of the state is copied to, from the result of an operator that reads it."""

    copy: fx.Node
    detached: fx.Node
    new: fx.Node
    state: str


def _write_in_place(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Have operators that compute new state write it, all at the end, where nothing else reads the old one."""
    written = {copy.args[0].target for copy in graph.nodes if is_method(copy, "copy_")}
    updates = [update for update in _updates(root, graph) if _reads_its_own_alone(update, written)]
    while True:
        moved = {update.new for update in updates}
        kept = [one for one in updates if all(user is one.detached or user in moved for user in one.new.users)]
        if len(kept) == len(updates):
            break
        updates = kept
    order = {node: place for place, node in enumerate(graph.nodes)}
    for copy, detached, new, _ in sorted(updates, key=lambda update: order[update.new]):
        with graph.inserting_before(graph.output_node()):
            result = graph.call_function(new.target, new.args, {**new.kwargs, "out": copy.args[0]})
        for node in (copy, detached):
            graph.erase_node(node)
        new.replace_all_uses_with(result)
        graph.erase_node(new)


def _updates(root: torch.nn.Module, graph: fx.Graph) -> Iterator[_Update]:
    for copy in graph.nodes:
        if not is_method(copy, "copy_") or copy.args[0].op != "get_attr":
            continue
        detached, state = copy.args[1], copy.args[0].target
        new = detached.args[0] if is_method(detached, "detach") else None
        if new is None or new.target not in _FUSED or "out" in new.kwargs:
            continue
        tensor = operator.attrgetter(state)(root)
        if kind_of(new) == (tuple(tensor.shape), "float32") and tensor.dtype is torch.float32:
            yield _Update(copy, detached, new, state)


def _reads_its_own_alone(update: _Update, written: set[str]) -> bool:
    """Whether of all that is written an operator reads what its result is written to, as it is, and nothing else."""
    return all(
        argument.op == "get_attr" and argument.target == update.state
        for argument in update.new.all_input_nodes
        if _state_of(argument) in written
    )


def _state_of(value: fx.Node) -> str | None:
    """In the memory of what of the state a value may lie."""
    while is_method(value, *_VIEWS):
        value = value.args[0]
    return value.target if value.op == "get_attr" else None
