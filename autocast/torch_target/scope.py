"""A sequence of bindings as nodes of a graph of torch's: of `main`, or of a branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import tvm
import tvm_ffi
from torch import fx
from torch.utils import _pytree as pytree
from tvm import relax, tirx
from tvm.ir.expr import StringImm

from autocast.errors import UnsupportedError
from autocast.ir import ConstantExpr, is_tensor, place_of, static_shape
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import Asked, Value
from autocast.torch_target.linear import use_linear
from autocast.torch_target.rows import ROWS
from autocast.torch_target.sizes import Sizes


class _Tracer(fx.proxy.GraphAppendingTracer):
    """Appends to a graph; tensors that are known while it is made become buffers of the module."""

    def __init__(self, graph: fx.Graph, root: torch.nn.Module) -> None:
        super().__init__(graph)
        self.root = root
        self.meta: dict[str, Any] = {}
        self._constants = 0
        self._modules: Counter[str] = Counter()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta.update(self.meta)
        return node

    def create_arg(self, value: Any) -> Any:
        return self.constant(value).node if isinstance(value, torch.Tensor) else super().create_arg(value)

    def constant(self, value: torch.Tensor) -> fx.Proxy:
        """A tensor that is the same in each call."""
        name = f"constant_{self._constants}"
        self._constants += 1
        self.root.register_buffer(name, value, persistent=False)
        return self.held(name)

    def module(self, module: torch.nn.Module, kind: str) -> fx.Proxy:
        """A branch of a choice, as a module of the root: "true_0"."""
        name = f"{kind}_{self._modules[kind]}"
        self._modules[kind] += 1
        self.root.add_module(name, module)
        return self.held(name)

    def held(self, name: str) -> fx.Proxy:
        """A parameter or buffer of the module."""
        return self.create_proxy("get_attr", name, (), {})


class Branch(torch.nn.Module):
    """A branch of a choice. Of a plain GraphModule torch 2.9 wants examples of its inputs, where gradients are wanted.

    Parameters
    ----------
    body : torch.fx.GraphModule
    """

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    @property
    def code(self) -> str:
        """The branch as Python."""
        return self.body.code

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the branch returns of the tensors that it reads."""
        return self.body(*tensors)


class Scope:
    """The values of variables in one graph.

    Attributes
    ----------
    root : torch.nn.Module
        Holds what the graph reads.
    graph : torch.fx.Graph
    sizes : Sizes
    """

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.tracer = _Tracer(self.graph, self.root)
        self.values: dict[relax.Var, Value] = {}
        self.sizes = Sizes()
        self.named: set[fx.Node] = set()

    def input(self, name: str) -> fx.Proxy:
        """An input of the graph; its name is another where one has that already."""
        name = self.graph._graph_namespace.create_name(name, None)
        return self.tracer.create_proxy("placeholder", name, (), {})

    def sequence(self, sequence: relax.SeqExpr) -> Value:
        """Add the nodes of all bindings; what the sequence is."""
        for block in sequence.blocks:
            for binding in block.bindings:
                self.convert(binding)
        return self.value(sequence.body)

    def finished(self) -> Branch:
        """The module of a branch, whose output is in the graph."""
        use_linear(self.graph)
        self.graph.eliminate_dead_code()
        return Branch(fx.GraphModule(self.root, self.graph, class_name="Branch"))

    def bind(self, var: relax.Var, value: Value) -> None:
        self.values[var] = value
        if isinstance(value, fx.Proxy) and is_tensor(var):
            value.node.meta["shape"] = static_shape(var)
        self.sizes.learn(var.ty, value)

    def convert(self, binding: relax.Binding) -> None:
        """Add the nodes of a binding, and name the last of them after its variable."""
        var, place = binding.var, place_of(binding.var)
        self.tracer.meta = {"autocast": place} if any(place) else {}
        if isinstance(binding, relax.MatchCast):
            value = self.value(binding.value)
            self.sizes.learn(binding.ty, value)
        else:
            value = self.value(binding.value)
        if isinstance(value, torch.Tensor):
            value = self.tracer.constant(value)
        if isinstance(value, fx.Proxy) and value.node.op.startswith("call") and value.node not in self.named:
            self.named.add(value.node)
            value.node._rename(var.name)
        self.bind(var, value)

    def value(self, expr: Any) -> Value:
        """What an expression is in the graph."""
        if isinstance(expr, relax.Var):
            return self.values[expr] if expr in self.values else self.sizes(expr)  # sizes are variables, too
        if isinstance(expr, StringImm) or (isinstance(expr, ConstantExpr) and isinstance(expr.value, tvm_ffi.dtype)):
            return str(expr.value)
        if isinstance(expr, ConstantExpr):
            return self.tracer.constant(from_tensor(expr.value, "torch"))
        if isinstance(expr, relax.Tuple):
            return tuple(map(self.value, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            asked = Asked(expr, tuple(map(self.value, expr.args)), self.sizes, self.exact)
            return ROWS[asked.name](asked)
        if isinstance(expr, relax.If):
            return conditional(self, expr)
        if isinstance(expr, relax.ExternFunc):
            return str(expr.global_symbol)
        return self.sizes(getattr(expr, "value", expr))


def conditional(scope: Scope, expr: relax.If) -> Value:
    """A choice between two branches, as torch's `cond` has it: modules that take the tensors that either reads.

    Before::                          After::

        if flag:                          y = cond(flag, true_0, false_0, (x,))
            y = R.exp(x)                  # true_0: return (x.exp(),)
        else:                             # false_0: return (x.neg(),)
            y = R.negative(x)
    """
    if not _has_tensors_alone(expr.ty):
        raise UnsupportedError(
            f"to_torch: a branch returns {expr.ty}, expected tensors: torch's cond returns nothing else"
        )
    branches = {"true": expr.true_branch, "false": expr.false_branch}
    outer = {var: scope.values[var] for branch in branches.values() for var in _read(branch) if var in scope.values}
    leaves, tree = pytree.tree_flatten(list(outer.values()))
    operands = {leaf.node: leaf for leaf in leaves if isinstance(leaf, fx.Proxy)}
    said = Sizes()
    for var, value in outer.items():
        said.learn(var.ty, value)
    unsaid = [size for size in _sizes_in(branches.values()) if scope.sizes.knows(size) and not said.knows(size)]
    sizes = {size: scope.sizes(size) for size in unsaid}
    carried = {s: torch.empty((value, 0)) for s, value in sizes.items() if isinstance(value, fx.Proxy)}
    scopes, specs = [], []
    for branch in branches.values():
        inner = Scope(scope.exact)
        taken = {node: inner.input(node.name) for node in operands}
        inside = [taken[leaf.node] if isinstance(leaf, fx.Proxy) else leaf for leaf in leaves]
        for size, value in sizes.items():
            known = inner.input(size.name).size(0) if size in carried else value
            inner.sizes.learn(relax.ShapeType([size]), (known,))
        for var, value in zip(outer, pytree.tree_unflatten(inside, tree), strict=True):
            inner.bind(var, value)
        results, spec = pytree.tree_flatten(inner.sequence(branch))
        inner.graph.output(tuple(inner.tracer.create_arg(_of_its_own(inner, result)) for result in results))
        scopes.append(inner)
        specs.append(spec)
    passed = (*operands.values(), *carried.values(), *_lifted(scope, scopes))
    modules = [scope.tracer.module(inner.finished(), kind) for kind, inner in zip(branches, scopes, strict=True)]
    arguments = (scope.value(expr.cond), *modules, passed)
    chosen = scope.tracer.create_proxy("call_function", torch.ops.higher_order.cond, arguments, {})
    return pytree.tree_unflatten([chosen[i] for i in range(specs[0].num_leaves)], specs[0])


def _has_tensors_alone(type: tvm.ir.Type) -> bool:
    if isinstance(type, tvm.ir.TupleType):
        return all(map(_has_tensors_alone, type.fields))
    return isinstance(type, relax.TensorType)


def _lifted(scope: Scope, branches: Sequence[Scope]) -> list[fx.Proxy]:
    """The constants of branches, held outside of them and passed: torch.export takes none that a branch holds."""
    read = [
        (branch, node, scope.tracer.constant(branch.root._buffers.pop(node.target)))
        for branch in branches
        for node in branch.graph.find_nodes(op="get_attr")
        if node.target in branch.root._buffers
    ]
    for branch in branches:
        for owner, node, constant in read:
            first = next((n for n in branch.graph.nodes if n.op != "placeholder"), None)
            with branch.graph.inserting_before(first):
                taken = branch.input(constant.node.name).node
            if owner is branch:
                node.replace_all_uses_with(taken)
                branch.graph.erase_node(node)
    return [constant for _, _, constant in read]


def _of_its_own(scope: Scope, result: Value) -> Value:
    """A result of a branch, which may share memory with nothing that the branch is given."""
    if isinstance(result, torch.Tensor):
        result = scope.tracer.constant(result)
    if not isinstance(result, fx.Proxy):
        raise UnsupportedError(
            f"to_torch: a branch returns {result!r:.80}, expected tensors: torch's cond returns nothing else"
        )
    return result.clone()


def _read(branch: relax.SeqExpr) -> list[relax.Var]:
    """The variables from outside that a branch reads."""
    return list(relax.analysis.free_vars(branch))


def _sizes_in(branches: Iterable[relax.SeqExpr]) -> dict[tirx.Var, None]:
    """The symbolic sizes that branches mention, in order."""
    found: dict[tirx.Var, None] = {}
    for branch in branches:
        function = relax.Function([], branch, is_pure=False)
        found.update(dict.fromkeys(relax.analysis.free_symbolic_vars(function)))
    return found
