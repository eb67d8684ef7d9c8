"""A sequence of bindings as nodes of a graph of torch's: of `main`, or of a part."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import tvm_ffi
from torch import fx
from tvm import relax
from tvm.ir.expr import StringImm

from autocast.ir import ConstantExpr, dtype_of, is_tensor, items, place_of, static_shape
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import Asked, Value
from autocast.torch_target.attention import share_attention
from autocast.torch_target.folding import has_effect
from autocast.torch_target.linear import transpose_operands, use_linear
from autocast.torch_target.rows import ROWS
from autocast.torch_target.sizes import Sizes
from autocast.torch_target.statistics import share_statistics


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
        """A part of a choice or a loop, as a module of the root: "true_0"."""
        name = f"{kind}_{self._modules[kind]}"
        self._modules[kind] += 1
        self.root.add_module(name, module)
        return self.held(name)

    def proxied(self, value: Value) -> fx.Proxy:
        """A tensor in the graph, which may be a known one."""
        return self.constant(value) if isinstance(value, torch.Tensor) else value

    def held(self, name: str) -> fx.Proxy:
        """A parameter or buffer of the module."""
        return self.create_proxy("get_attr", name, (), {})


class Scope:
    """The values of variables in one graph.

    Parameters
    ----------
    exact : bool
        As `to_torch` takes it.

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

    def inner(self) -> Scope:
        """That of a part."""
        raise NotImplementedError

    def input(self, name: str) -> fx.Proxy:
        """An input of the graph; its name is another where one has that already."""
        proxy = self.tracer.create_proxy("placeholder", "self_" if name == "self" else name, (), {})
        proxy.node.target = proxy.node.name
        return proxy

    def sequence(self, sequence: relax.SeqExpr) -> Value:
        """Add the nodes of all bindings; what the sequence is."""
        for block in items(sequence.blocks):
            for binding in items(block.bindings):
                self.convert(binding)
        return self.value(sequence.body)

    def tidy(self) -> None:
        """Write products as torch does, and drop what nobody reads."""
        share_attention(self.graph)
        share_statistics(self.graph)
        transpose_operands(self.graph)
        use_linear(self.graph)
        self.graph.eliminate_dead_code(has_effect)

    def bind(self, var: relax.Var, value: Value) -> None:
        self.values[var] = value
        if isinstance(value, fx.Proxy) and is_tensor(var):
            value.node.meta |= {"shape": static_shape(var), "dtype": dtype_of(var)}
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
        value = self.tracer.proxied(value)
        if isinstance(value, fx.Proxy) and value.node.op.startswith("call") and value.node not in self.named:
            self.named.add(value.node)
            value.node._rename(var.name)
        self.bind(var, value)

    def value(self, expr: Any) -> Value:
        """What an expression is in the graph."""
        if isinstance(expr, relax.Var):
            return self.values[expr] if expr in self.values else self.sizes(expr)  # sizes are variables, too
        if isinstance(expr, relax.Call):
            asked = Asked(expr, tuple(map(self.value, items(expr.args))), self.sizes, self.exact)
            return ROWS[asked.name](asked)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Tuple):
            return tuple(map(self.value, items(expr.fields)))
        if isinstance(expr, StringImm) or (isinstance(expr, ConstantExpr) and isinstance(expr.value, tvm_ffi.dtype)):
            return str(expr.value)
        if isinstance(expr, ConstantExpr):
            return self.tracer.constant(from_tensor(expr.value, "torch"))
        if isinstance(expr, relax.ExternFunc):
            return str(expr.global_symbol)
        return self.sizes(getattr(expr, "value", expr))
