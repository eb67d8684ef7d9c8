"""All that a call launches on a CUDA device, launched at once: a graph of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from autocast.runtime.signature import Signature

#: What waits for the device, as it makes sizes or numbers of values.
_WAITING = frozenset((torch.nonzero, torch.unique, "item"))


class CapturedCalls:
    """A function of tensors whose sizes never change: the first call runs it, the second captures it, others replay it.

    What cannot be captured, as it waits for the device, is run each time.

    Parameters
    ----------
    run : function
        Of tensors on a CUDA device, to tensors there. It may change those that it reads, in place.
    written : sequence of int
        The positions of arguments that it changes.
    device : torch.device

    Attributes
    ----------
    refused : str, optional
        Why it is run each time; None where it is not.
    """

    def __init__(self, run: Callable[..., Any], written: Sequence[int], device: torch.device) -> None:
        self._run, self._written, self._device = run, written, device
        self._inputs: tuple[torch.Tensor, ...] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Any = None
        self._done: torch.cuda.Event | None = None
        self.refused: str | None = None

    @property
    def is_captured(self) -> bool:
        """Whether calls replay a graph."""
        return self._graph is not None

    def __call__(self, *arguments: torch.Tensor) -> Any:
        """What the function returns, in memory that no later call writes."""
        if self.refused is not None:
            return self._run(*arguments)
        with torch.cuda.device(self._device):
            return self._replayed(arguments)

    def _replayed(self, arguments: tuple[torch.Tensor, ...]) -> Any:
        stream = torch.cuda.current_stream()
        if self._done is not None:
            stream.wait_event(self._done)  # another stream may still read and write what the graph holds
        if self._inputs is None:
            self._inputs = tuple(value.clone() for value in arguments)
            outputs = self._run(*self._inputs)
        else:
            for own, value in zip(self._inputs, arguments, strict=True):
                own.copy_(value)
            self._graph = self._graph or self._capture(self._inputs)
            if self._graph is None:
                return self._run(*arguments)
            self._graph.replay()
            outputs = self._outputs
        for position in self._written:
            arguments[position].copy_(self._inputs[position])
        results = pytree.tree_map_only(torch.Tensor, torch.clone, outputs)
        self._done = stream.record_event()
        return results

    def _capture(self, inputs: tuple[torch.Tensor, ...]) -> torch.cuda.CUDAGraph | None:
        """The graph, None where there can be none; nothing was run."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._outputs = self._run(*inputs)
        except RuntimeError as error:
            self.refused, self._inputs = str(error), None
            # Torch leaves the generator as if it were captured still, and every random number would be an error.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            return None
        return graph


def can_be_captured(module: fx.GraphModule, signature: Signature) -> bool:
    """Whether each call launches the same: no size varies, nothing is chosen or repeated by values, and there is no
    operator of torch's that the importer does not know."""
    sizes = [size for spec in signature.inputs for size in spec.shape]
    return all(isinstance(size, int) for size in sizes) and not any(
        isinstance(node.target, HigherOrderOperator | OpOverload) or node.target in _WAITING
        for node in module.graph.nodes
    )


@contextmanager
def sums_in_float32() -> Iterator[None]:
    """Add what products of 16 bits multiply in float32 alone: cuBLAS may else add parts of long sums in 16 bits."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(torch._C, f"_get_cublas_{name}")() for name in names]
    try:
        for name, value in zip(names, before, strict=True):
            setattr(matmul, name, False if isinstance(value, bool) else (False, *value[1:]))
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(matmul, name, value)
