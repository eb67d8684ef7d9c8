"""A model as a torch module: the same operators, in the same order, each written as torch has it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import (
    ConstantExpr,
    all_bindings,
    first_order,
    is_tensor,
    op_name,
    place_of,
    relax_functions,
    static_shape,
)
from autocast.kernels.phases.expand import expand_operators
from autocast.model.value import Model, updates_of
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import Asked, Value
from autocast.torch_target.linear import use_linear
from autocast.torch_target.rows import ROWS
from autocast.torch_target.sizes import Sizes


def to_torch(model: Model, *, exact: bool = True) -> fx.GraphModule:
    """A torch module that computes what a model does, by torch's operators.

    Parameters
    ----------
    model : Model
        As it was imported, or with casts, or a training step.
    exact : bool
        Products of 16 bits whose result is float32 are computed in float32, which takes twice as long: torch's for CPUs
        answer in 16 bits. False rounds them so, as `torch.autocast` does.

    Returns
    -------
    torch.fx.GraphModule
        Takes the model's inputs, in their order, and returns its outputs: one tensor or a tuple. Casts are calls of
        `to`. Parameters have their names in torch, and share the model's memory; those that a call of the model
        replaces are buffers with copies of their own, which each call changes in place. Dimensions that are dynamic in
        the model are here, too. `print(module.code)` shows it. The nodes' `meta` has the submodules and regions that
        they come from.

    Raises
    ------
    UnsupportedError
        Some of the model's operators have no row in `autocast.torch_target.rows`: all of them, with counts.
    """
    mod = expand_operators(first_order(model.mod, inline_private=True), _has_row)
    _check(mod)
    return _Converter(mod, model, exact).module()


def _has_row(call: relax.Call) -> bool:
    return (op_name(call) or "").removeprefix("relax.") in ROWS


def _check(mod: tvm.IRModule) -> None:
    """Raise an error that lists all that has no meaning in torch."""
    unknown: Counter[str] = Counter()
    for _, function in relax_functions(mod):
        for binding in all_bindings(function.body):
            value = binding.value
            if isinstance(value, relax.If):
                unknown["if"] += 1
            elif isinstance(value, relax.Call) and not _has_row(value):
                unknown[op_name(value) or f"a call of {value.op}"] += 1
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise UnsupportedError(
            f"to_torch: nothing says what these are in torch: {listed}. Expected operators with a row in "
            "autocast.torch_target.rows; autocast.compile runs the model with kernels of its own"
        )


class _Tracer(fx.proxy.GraphAppendingTracer):
    """Appends to a graph; tensors that are known while it is made become buffers of the module."""

    def __init__(self, graph: fx.Graph, root: torch.nn.Module) -> None:
        super().__init__(graph)
        self.root = root
        self.meta: dict[str, Any] = {}
        self._constants = 0

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

    def held(self, name: str) -> fx.Proxy:
        """A parameter or buffer of the module."""
        return self.create_proxy("get_attr", name, (), {})


class _Converter:
    """Makes the graph of `main`."""

    def __init__(self, mod: tvm.IRModule, model: Model, exact: bool) -> None:
        self.exact = exact
        self.main = mod["main"]
        self.model = model
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.tracer = _Tracer(self.graph, self.root)
        self.values: dict[relax.Var, Value] = {}
        self.sizes = Sizes()
        self.named: set[fx.Node] = set()

    def module(self) -> fx.GraphModule:
        """The module, when all of `main` is in its graph."""
        count = self.model.num_input
        for var in self.main.params[:count]:
            self.bind(var, self.tracer.create_proxy("placeholder", var.name, (), {}))
        names = list(self.model.params)
        updates = updates_of(self.main)
        for position, (name, var) in enumerate(zip(names, self.main.params[count:], strict=True)):
            self.hold(name, is_state=position in updates)
            self.bind(var, self.tracer.held(name))
        for binding in all_bindings(self.main.body):
            self.convert(binding)
        outputs = self.value(self.main.body.body)
        if updates:
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            outputs = self.updated(list(outputs), [names[position] for position in updates])
        self.graph.output(self.tracer.create_arg(outputs))
        use_linear(self.graph)
        self.graph.eliminate_dead_code(lambda node: node.is_impure() or node.target == "copy_")
        module = fx.GraphModule(self.root, self.graph, class_name="Model")
        module._non_persistent_buffers_set |= self.root._non_persistent_buffers_set & module._buffers.keys()
        return module

    def hold(self, name: str, *, is_state: bool) -> None:
        """Put a parameter at its name; state is a buffer with a copy."""
        value = from_tensor(self.model.params[name], "torch")
        *path, last = name.split(".")
        owner = self.root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        if is_state:
            owner.register_buffer(last, value.clone())
        else:
            trained = value.is_floating_point() and name not in self.model.frozen
            owner.register_parameter(last, torch.nn.Parameter(value, requires_grad=trained))

    def updated(self, outputs: list[Value], names: list[str]) -> Value:
        """The results, after the rest of what main returns has replaced the state.

        What could be a view of state that is about to change is copied first.
        """
        results = [self.own(value) for value in outputs[: len(outputs) - len(names)]]
        news = [self.own(value) for value in outputs[len(results) :]]
        for name, value in zip(names, news, strict=True):
            self.tracer.held(name).copy_(value)
        return results[0] if len(results) == 1 else tuple(results)

    def own(self, value: Value) -> Value:
        """A value that no update changes."""
        node = value.node
        while node.op in ("call_method", "call_function") and _may_be_a_view(node):
            node = node.args[0]
        return value.clone() if node.op == "get_attr" else value

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
        if isinstance(expr, ConstantExpr):
            return self.tracer.constant(from_tensor(expr.value, "torch"))
        if isinstance(expr, relax.Tuple):
            return tuple(map(self.value, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            asked = Asked(expr, tuple(map(self.value, expr.args)), self.sizes, self.exact)
            return ROWS[asked.name](asked)
        return self.sizes(getattr(expr, "value", expr))


_VIEWS = frozenset(("reshape", "permute", "expand", "size", "to"))


def _may_be_a_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _VIEWS
    return getattr(node.target, "__name__", "") in (
        "getitem",
        "transpose",
        "flatten",
        "movedim",
        "narrow",
        "split",
        "select",
    )
