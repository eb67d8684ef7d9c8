"""Parts of a graph that torch runs or not, or again and again: modules that take all that they read.

What they read is a variable from around them, a size that none of these says, or a constant that they hold; torch has
them take it as tensors, and share memory with none that they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import tvm
from torch import fx
from torch.utils import _pytree as pytree
from tvm import relax, tirx

from autocast.errors import UnsupportedError
from autocast.torch_target.asked import Value
from autocast.torch_target.module import TorchModel
from autocast.torch_target.placing import place_with
from autocast.torch_target.scope import Scope
from autocast.torch_target.sizes import Sizes


class Part(torch.nn.Module):
    """A branch or a step. Of a plain GraphModule torch 2.9 wants examples of its inputs, where gradients are wanted.

    Parameters
    ----------
    body : torch.fx.GraphModule
    """

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    @property
    def code(self) -> str:
        """The part as Python."""
        return self.body.code

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...] | torch.Tensor:
        """What the part returns of the tensors that it reads."""
        return self.body(*tensors)


class Surroundings:
    """What parts read from around them.

    Parameters
    ----------
    scope : Scope
        Around the parts.
    values : mapping of relax.Var to Value
        The variables that they read.
    parts : iterable of relax.Expr
        Whose sizes these may not say.

    Attributes
    ----------
    tensors : list of torch.fx.Proxy
        What the parts are given.
    """

    def __init__(self, scope: Scope, values: Mapping[relax.Var, Value], parts: Iterable[relax.Expr]) -> None:
        self._variables = list(values)
        self._leaves, self._tree = pytree.tree_flatten(list(values.values()))
        self._nodes = {leaf.node: leaf for leaf in self._leaves if isinstance(leaf, fx.Proxy)}
        said = Sizes()
        for var, value in values.items():
            said.learn(var.ty, value)
        unsaid = [size for size in _sizes_in(parts) if scope.sizes.knows(size) and not said.knows(size)]
        self._sizes = {size: scope.sizes(size) for size in unsaid}
        carried = [torch.empty((value, 0)) for value in self._sizes.values() if isinstance(value, fx.Proxy)]
        self.tensors: list[fx.Proxy] = [*self._nodes.values(), *carried]

    def enter(self, inner: Scope) -> None:
        """Have a part take them, and know the variables by them."""
        taken = {node: inner.input(node.name) for node in self._nodes}
        inside = [taken[leaf.node] if isinstance(leaf, fx.Proxy) else leaf for leaf in self._leaves]
        for size, value in self._sizes.items():
            known = inner.input(size.name).size(0) if isinstance(value, fx.Proxy) else value
            inner.sizes.learn(relax.ShapeType([size]), (known,))
        for var, value in zip(self._variables, pytree.tree_unflatten(inside, self._tree), strict=True):
            inner.bind(var, value)


def _sizes_in(parts: Iterable[relax.Expr]) -> dict[tirx.Var, None]:
    """The symbolic sizes that parts mention, in order."""
    found: dict[tirx.Var, None] = {}
    for part in parts:
        function = relax.Function([], part, tvm.ir.TupleType([]), is_pure=False)  # sequences made here have no type
        found.update(dict.fromkeys(relax.analysis.free_symbolic_vars(function)))
    return found


def as_modules(
    scope: Scope, parts: Mapping[str, Scope], given: Sequence[fx.Proxy], kept: int = 0
) -> tuple[list[fx.Proxy], list[fx.Proxy]]:
    """Modules of parts that have an output, and what all of them are given: all that one of them reads.

    Parameters
    ----------
    scope : Scope
        Around the parts.
    parts : mapping of str to Scope
        By the kinds of their names, such as "true".
    given : sequence of torch.fx.Proxy
        What each part has an input for, in their order.
    kept : int
        How many of these the parts take whether they read them or not.
    """
    inners = list(parts.values())
    for inner in inners:
        inner.tidy()
    passed = [*given, *_lifted(scope, inners)]
    for inner in inners:
        place_with(inner.graph.find_nodes(op="placeholder"), inner.graph)
    inputs = list(zip(*(inner.graph.find_nodes(op="placeholder") for inner in inners), strict=True))
    read = [at < kept or any(node.users for node in nodes) for at, nodes in enumerate(inputs)]
    for nodes, is_read in zip(inputs, read, strict=True):
        for inner, node in zip(inners, nodes, strict=True):
            if not is_read:
                inner.graph.erase_node(node)
    modules = [
        scope.tracer.module(Part(TorchModel(inner.root, inner.graph, "Part")), kind) for kind, inner in parts.items()
    ]
    return modules, _apart([value for value, is_read in zip(passed, read, strict=True) if is_read])


def _lifted(scope: Scope, parts: Sequence[Scope]) -> list[fx.Proxy]:
    """The constants of parts, held outside of them and passed: torch.export takes none that a part holds."""
    read = [
        (part, node, scope.tracer.constant(part.root._buffers.pop(node.target)))
        for part in parts
        for node in part.graph.find_nodes(op="get_attr")
        if node.target in part.root._buffers
    ]
    for part in parts:
        for owner, node, constant in read:
            first = next((n for n in part.graph.nodes if n.op != "placeholder"), None)
            with part.graph.inserting_before(first):
                taken = part.input(constant.node.name).node
            if owner is part:
                node.replace_all_uses_with(taken)
                part.graph.erase_node(node)
    return [constant for _, _, constant in read]


def of_its_own(scope: Scope, result: Value) -> fx.Proxy:
    """A result of a part, which may share memory with nothing that the part is given."""
    if isinstance(result, torch.Tensor):
        result = scope.tracer.constant(result)
    if not isinstance(result, fx.Proxy):
        raise UnsupportedError(
            f"to_torch: a branch returns {result!r:.80}, expected tensors: torch's cond returns nothing else"
        )
    return result.clone()


def _apart(tensors: Sequence[fx.Proxy]) -> list[fx.Proxy]:
    """Tensors that share no memory: what may be a view of an earlier one, or is it, is copied."""
    bases: set[fx.Node] = set()
    found = []
    for tensor in tensors:
        base = base_of(tensor.node)
        found.append(tensor.clone() if base in bases else tensor)
        bases.add(base)
    return found


def base_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's may be."""
    while node.op in ("call_method", "call_function") and _may_be_a_view(node):
        node = node.args[0]
    return node


_VIEWS = frozenset(("detach", "expand", "permute", "reshape", "size", "squeeze", "to", "unsqueeze", "view"))


def _may_be_a_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _VIEWS
    if isinstance(node.args[0], fx.Node) and isinstance(node.args[0].target, torch._ops.HigherOrderOperator):
        return False  # one of its results
    return getattr(node.target, "__name__", "") in (
        "getitem",
        "transpose",
        "flatten",
        "movedim",
        "narrow",
        "split",
        "select",
    )


def has_tensors_alone(type: tvm.ir.Type) -> bool:
    """Whether a value is a tensor, or a tuple of such values."""
    if isinstance(type, tvm.ir.TupleType):
        return all(map(has_tensors_alone, type.fields))
    return isinstance(type, relax.TensorType)
