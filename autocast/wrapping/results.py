"""What a wrapped module returns, made of what its program computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree


class _Same(NamedTuple):
    """What a result is: the "input" or the "result" in this place, or with this path, or the "weight" of this name."""

    kind: str
    of: Any


class Returned:
    """What a module returned when it was exported.

    Parameters
    ----------
    module : torch.nn.Module
        As it was then: with tensors that have no values.
    args, kwargs
        What it was called with.
    outputs
        Tensors and other values, nested.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        self._leaves, self._outputs = pytree.tree_flatten(outputs)
        #: By their places those that were there before: inputs, weights, earlier ones.
        self._same: dict[int, _Same] = {}
        known = {id(tensor): _Same("input", path) for path, tensor in reversed(_tensors_by_path(args, kwargs))}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            known.setdefault(id(tensor), _Same("weight", name))
        for place, leaf in enumerate(self._leaves):
            if isinstance(leaf, torch.Tensor) and known.setdefault(id(leaf), _Same("result", place)).of != place:
                self._same[place] = known[id(leaf)]

    def results(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results | None:
        """How calls with inputs of this kind make it of what is computed; None where that is one tensor."""
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        places = {path: place for place, (path, _) in enumerate(_tensors_by_path(args, kwargs))}
        leaves = list(map(_kept, self._leaves))
        for place, (kind, of) in self._same.items():
            leaves[place] = weights[of] if kind == "weight" else _Same(kind, places[of] if kind == "input" else of)
        return None if leaves == [None] and self._outputs.is_leaf() else Results(self._outputs, leaves)


class Results:
    """Makes what a module returns.

    Parameters
    ----------
    outputs : pytree.TreeSpec
        How it is nested.
    leaves : list
        What is at the tree's leaves: None stands for a tensor, a function for what is made of one of the program's
        results (`torch.view_as_complex`, of pairs), a weight for itself, a `_Same` for what another is, and ("", value)
        for something else.
    """

    def __init__(self, outputs: pytree.TreeSpec, leaves: list[Any]) -> None:
        self._outputs, self._leaves = outputs, leaves

    def __call__(self, computed: Any, inputs: list[torch.Tensor]) -> Any:
        """What the module returns, of the program's result, or results, and the tensors among the inputs."""
        tensors = iter(computed if isinstance(computed, tuple) else (computed,))
        results: list[Any] = []
        for leaf in self._leaves:
            if leaf is None:
                results.append(next(tensors))
            elif isinstance(leaf, tuple) and not isinstance(leaf, _Same):
                results.append(leaf[1])
            else:
                results.append(_made(leaf, next(tensors), results, inputs))
        return pytree.tree_unflatten(results, self._outputs)


def _made(leaf: Any, tensor: torch.Tensor, results: list[Any], inputs: list[torch.Tensor]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, _Same):
        return (inputs if leaf.kind == "input" else results)[leaf.of]
    return leaf(tensor)


def _tensors_by_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, torch.Tensor]]:
    """Tensors by their argument and their place in it, in the order in which calls give them."""
    given = [*enumerate(args), *kwargs.items()]
    leaves = [((name, at), leaf) for name, value in given for at, leaf in enumerate(pytree.tree_leaves(value))]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _kept(leaf: Any) -> Any:
    """How what the module returned at a leaf is made of the program's results: see `Results`."""
    if isinstance(leaf, torch.Tensor):
        return torch.view_as_complex if leaf.is_complex() else None
    if isinstance(leaf, int | float | torch.SymInt | torch.SymFloat):
        return torch.Tensor.item
    return "", leaf
