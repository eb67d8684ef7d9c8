"""The module that `to_torch` makes: a GraphModule whose dtypes are the model's, and whose constants stay with it."""

from __future__ import annotations

import copy
import itertools
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import _get_qualified_name

from autocast.errors import UnsupportedError


class TorchModel(fx.GraphModule):
    """A model's graph with what it reads.

    Of a plain GraphModule a copy has constants in its state dict, and parametrizations no longer; what is unpickled is
    traced anew, which branches and loops do not stand; and one that was on "meta" has constants without values.

    Parameters
    ----------
    root : torch.nn.Module
        Has what the graph reads; its buffers that are not persistent are constants.
    graph : torch.fx.Graph
    name : str
        What it is called when it is printed.
    """

    def __init__(self, root: torch.nn.Module, graph: fx.Graph, name: str) -> None:
        super().__init__(root, graph, class_name=name)
        names = [name for name in root._non_persistent_buffers_set if name in self._buffers]
        self._non_persistent_buffers_set.update(names)
        #: What the constants are: no call, no `to` and no state changes that.
        self._constants = {name: self._buffers[name] for name in names}

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> TorchModel:
        """As torch's: moves what there is, and changes no dtype; constants keep their values, on "meta" and after it.

        Raises
        ------
        UnsupportedError
            `half()`, `to(torch.bfloat16)` and the like.
        """
        state = itertools.chain(self.parameters(), (b for n, b in self.named_buffers() if n not in self._constants))
        for dtype in {tensor.dtype for tensor in state if tensor.is_floating_point()}:
            asked = fn(torch.empty(0, dtype=dtype)).dtype
            if asked != dtype:
                raise UnsupportedError(
                    f"to_torch: a module whose weights are {_plain(dtype)} was asked for {_plain(asked)}; its dtypes "
                    "and casts are those of the model that it was made of, expected at most another device. Cast the "
                    "model, autocast.to_torch(autocast.amp.autocast(model, dtype=...)), or convert the module before "
                    "it is imported, autocast.from_torch(module.double(), ...)"
                )
        super()._apply(fn, recurse)
        self._restore()
        return self

    def _restore(self, device: torch.device | None = None) -> None:
        """Give constants their values, unless they are on "meta"; then on a device, where one is given."""
        for name, value in self._constants.items():
            now = self._buffers.get(name)
            if now is not None:
                self._buffers[name] = value.to(device if device is not None and now.is_meta else now.device)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """As torch's; what takes a parameter's place is converted to its dtype, as what is copied is."""
        if local_metadata.get("assign_to_params_buffers", False):
            for name, own in self.state_dict(keep_vars=True).items():
                value = state_dict.get(prefix + name)
                if isinstance(value, torch.Tensor):
                    state_dict[prefix + name] = value.to(own.dtype)
                    self._restore(value.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchModel:
        result = _empty(type(self).__name__)
        memo[id(self)] = result
        state = copy.deepcopy(self.__dict__, memo)
        graph = state.pop("_graph")
        result.__dict__.update(state)
        result.graph = graph
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_graph", "_code")}
        return _empty, (type(self).__name__,), {**state, _WRITTEN: written(self.graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        graph = read(state.pop(_WRITTEN))
        super().__setstate__(state)
        self.graph = graph


#: Where a state that is pickled has the graph.
_WRITTEN = "_autocast_graph"


def _empty(name: str) -> TorchModel:
    """A module that has nothing yet."""
    module: TorchModel = TorchModel.__new__(TorchModel)
    type(module).__name__ = name  # fx makes a class for each module
    return module


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Place:
    """A node among the arguments of another: its place in the graph."""

    at: int


def written(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """A graph as values that can be pickled: a line for each node, with functions by their names."""
    places = {node: Place(at) for at, node in enumerate(graph.nodes)}
    return [
        (
            node.op,
            node.target if isinstance(node.target, str) else _name_of(node.target),
            *(fx.map_arg(part, places.__getitem__) for part in (node.args, node.kwargs)),
            node.name,
            node.meta.get("autocast"),
        )
        for node in graph.nodes
    ]


def _name_of(function: Callable[..., Any]) -> str:
    name = _get_qualified_name(function)
    return name if "." in name else f"builtins.{name}"  # getattr


def read(lines: Sequence[tuple[Any, ...]]) -> fx.Graph:
    """The graph that was `written` so."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for op, target, args, kwargs, name, place in lines:
        function = pkgutil.resolve_name(target) if op == "call_function" else target
        given = [_with_nodes(part, nodes) for part in (args, kwargs)]
        node = graph.create_node(op, function, *given, name=name)
        if place is not None:
            node.meta["autocast"] = place
        nodes.append(node)
    return graph


def _with_nodes(value: Any, nodes: Sequence[fx.Node]) -> Any:
    """Arguments with the nodes themselves."""
    if isinstance(value, Place):
        return nodes[value.at]
    if isinstance(value, slice):
        return slice(*(_with_nodes(part, nodes) for part in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _with_nodes(one, nodes) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_with_nodes(one, nodes) for one in value)
    return value
