"""`torch.compile(module, backend="autocast")`: the graphs that Dynamo finds, cast and run by our kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily

from autocast.dynamo.graphs import Graph, LeftToAutograd, value_of
from autocast.errors import UnsupportedError

__all__ = ["backend"]

#: Functions of `torch.func` that enter a transform which torch.export does not trace, but AOTAutograd does.
_DIFFERENTIATING = {"_grad_increment_nesting", "_jvp_increment_nesting"}


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's; `torch.compile` finds it as "autocast".

    Parameters
    ----------
    graph : torch.fx.GraphModule
        Takes tensors, sizes, and the module's parameters, in any order.
    example_inputs : sequence
        What it is about to be called with. Where gradients are recorded and one of these requires them, the graph is
        compiled for training: forward and backward, each with its casts. So is one that changes buffers, or draws
        random numbers, but for the backward.
    options : mapping, optional
        Of `amp.autocast`: `{"policy": "mp1"}`, `{"dtype": "float16"}`; its defaults where nothing is given.
    mode : str, optional
        Those of torch are Inductor's: an error.

    Returns
    -------
    callable
        Takes what the graph takes, and returns a tuple. To infer, parameters are cast and packed when they are first
        seen, and again after they were changed; in training they are inputs of each call.

    Raises
    ------
    ImportModelError
        The graph holds operators that cannot be imported: all are listed.
    UnsupportedError
        A `mode` was asked for; an input is a nested tensor; the graph returns what is neither a tensor nor known.
    """
    if mode is not None:
        raise UnsupportedError(
            f"torch.compile: backend='autocast' was given mode={mode!r}, which is one of Inductor's; expected none. "
            "Pass options={...} of amp.autocast, such as {'policy': 'mp1'}"
        )
    if any(isinstance(x, torch.Tensor) and x.is_nested for x in example_inputs):
        raise UnsupportedError(
            "torch.compile: backend='autocast' was given a nested tensor, whose rows have sizes of their own; expected "
            "tensors of one size. Pad it, torch.nested.to_padded_tensor(x, 0.0), and mask what is padding"
        )
    options = options or {}
    trains = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    if not trains and not _differentiates(graph):
        with contextlib.suppress(LeftToAutograd), tracing(None), unset_fake_temporarily():
            compiled = Graph(graph, options, example_inputs)
            compiled.prepare(example_inputs)
            return compiled
    from autocast.dynamo.training import training_backend  # and AOTAutograd, which most inference does not need

    return training_backend(graph, example_inputs, options)


def _differentiates(graph: fx.GraphModule) -> bool:
    """Whether gradients are taken in the graph, or of results of a part of it that records them."""
    if any(getattr(node.target, "__name__", "") in _DIFFERENTIATING for node in graph.graph.nodes):
        return True
    results = map(value_of, graph.graph.output_node().all_input_nodes)
    return any(isinstance(result, torch.Tensor) and result.requires_grad for result in results)
