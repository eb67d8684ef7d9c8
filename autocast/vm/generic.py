"""A model run by torch: its kernels take sizes as arguments, so nothing is compiled for a model."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import tvm_ffi

from autocast.collecting import without_garbage_collection
from autocast.errors import UnsupportedError
from autocast.model.value import Model
from autocast.runtime import heap
from autocast.runtime.tensors import to_tensor


class Generic:
    """A model whose operators torch computes, one by one.

    What depends on parameters alone is computed once, unless calls replace parameters. The process keeps the memory of
    torch's results for the next ones (`autocast.runtime.heap`) as long as it has one of these.

    Attributes
    ----------
    calls : int
        Of torch's functions, in a call of the model.

    Raises
    ------
    UnsupportedError
        Torch is not installed, or has no meaning for some of the model's operators.
    """

    def __init__(self, model: Model) -> None:
        if importlib.util.find_spec("torch") is None:
            raise UnsupportedError(
                "compile: mode='dynamic_hybrid' runs models by torch's kernels until they are compiled, and torch is "
                "not installed. Try mode='fast'"
            )
        import torch

        from autocast.torch_target.calls import Calls
        from autocast.torch_target.convert import multiplied_slowly, to_graph
        from autocast.torch_target.eager import use_fast_forms
        from autocast.torch_target.folding import fold
        from autocast.torch_target.library_forms import use_library_forms
        from autocast.torch_target.updates import fuse_updates

        heap.keep()
        weakref.finalize(self, heap.give_back).atexit = False
        self._root, graph = to_graph(model, widened=multiplied_slowly(torch.device("cpu")))
        use_fast_forms(self._root, graph)
        self._updated = model.updated
        if self._updated:
            fuse_updates(self._root, graph)
        else:
            fold(self._root, graph)
        use_library_forms(self._root, graph, constant=not self._updated)
        self.calls = sum(node.op in ("call_function", "call_method") for node in graph.nodes)
        #: One by one, which takes less than to write and compile Python that does.
        self._calls = Calls(self._root, graph)

    def __call__(self, *inputs: tvm_ffi.Tensor) -> Any:
        """Tensors of the virtual machine in, one of them or a tuple out."""
        import torch

        with torch.inference_mode(), without_garbage_collection():
            outputs = self._calls(*map(torch.from_dlpack, inputs))
        return _converted(outputs)

    @cached_property
    def state(self) -> Mapping[str, tvm_ffi.Tensor]:
        """The parameters that calls update, by name, in the memory that they update."""
        values: Any = self._root.state_dict()
        return {name: to_tensor(values[name]) for name in self._updated}


def _converted(outputs: Any) -> Any:
    return tuple(map(_converted, outputs)) if isinstance(outputs, tuple | list) else to_tensor(outputs)
