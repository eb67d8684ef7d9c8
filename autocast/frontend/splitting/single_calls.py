"""Splitting the calls of a program, each traced by itself: torch would trace the program again from its start.

Alike calls are traced once. Most models are imported in half of the time; a detector of 1,900 calls, of which eighteen
sample images at computed places, in two fifths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, exported_program
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from autocast.frontend.nodes import is_composite
from autocast.frontend.splitting.in_place import in_functional_form
from autocast.frontend.splitting.splits import split_rightly

aten = torch.ops.aten

Table: TypeAlias = Mapping[OpOverload, Callable[..., Any]]

#: How torch keeps composite operators whole as it splits others: parts of torch that it may do without some day.
_sorted_out: Any = getattr(exported_program, "_split_decomp_table_to_cia_and_python_decomp", None)
_keeping: Any = getattr(exported_program, "_override_composite_implicit_decomp", None)

#: What torch calls operators in functional form, besides those of its tables.
_IN_FUNCTIONS = {
    aten.item.default: aten._local_scalar_dense.default,
    aten.lift_fresh_copy.default: aten.clone.default,
}

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class Split(NamedTuple):
    """What a call is replaced by: a graph of its inputs, which are at these places among what it is given."""

    call: fx.Node
    places: list[int]
    graph: fx.Graph


def decomposed(program: ExportedProgram, table: Table) -> ExportedProgram | None:
    """A program in functional form, whose calls are split by the functions that a table has, and torch's dispatcher.

    None where it calls functions, writes into what it does not make itself or reads again under another name, or where
    a call cannot be traced by itself.
    """
    if not _has_operators_alone(program):
        return None
    result = copied(program)
    if not in_functional_form(result.graph):
        return None
    for node in result.graph.nodes:
        node.target = _IN_FUNCTIONS.get(node.target, node.target)
    calls = [
        node
        for node in result.graph.nodes
        if (node.target in table or is_composite(node.target)) and not _is_number(node)
    ]
    with split_rightly():
        splits = traced(calls, table)
    if splits is None:
        return None
    replace(result, splits)
    return result


def _has_operators_alone(program: ExportedProgram) -> bool:
    """Whether a program consists of operators of known types and of numbers: it calls no functions, for one."""
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            return False
        if node.op == "call_function" and not _is_number(node) and node.target is not getitem:
            if not isinstance(node.target, OpOverload):
                return False
            if node.target._schema.returns and "val" not in node.meta:
                return False
    return True


def _is_number(node: fx.Node) -> bool:
    """Whether a call has a number, of sizes or of a tensor's value."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def copied(program: ExportedProgram) -> ExportedProgram:
    """A program of the same values with a graph of its own."""
    graph = copy.deepcopy(program.graph)
    for old, new in zip(program.graph.nodes, graph.nodes, strict=True):
        new.name = old.name  # which torch changes where Python has something of that name, `input` say
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    ranges = dict(program.range_constraints)
    if mode and mode.shape_env:  # which has those of sizes that torch.export found as it traced, too
        known = {**ranges, **mode.shape_env.var_to_range, **ranges}
        ranges = {symbol: known[symbol] for symbol in known if symbol not in mode.shape_env.replacements}
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=ranges,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def traced(calls: Sequence[fx.Node], table: Table) -> list[Split] | None:
    """Calls split by the functions that a table has for their operators; None where one cannot be traced by itself.

    That is where a function writes in place, makes constants or sizes that values decide, calls functions, leaves the
    call as it is, has results of other types than the operator's, or fails.
    """
    if _sorted_out is None or _keeping is None:
        return None
    kept, functions = _sorted_out(dict(table))
    calls = [call for call in calls if call.target in table or call.target not in kept]
    mode = detect_fake_mode([call.meta.get("val") for call in calls])
    if mode is None:
        return None if calls else []
    sizes = mode.shape_env.ignore_fresh_unbacked_symbols() if mode.shape_env else nullcontext()
    with torch.no_grad(), mode, sizes, _keeping(kept), enable_python_dispatcher():
        try:
            return _splits(calls, table, functions)
        except Exception:  # of torch's functions: where all is traced, what goes wrong is said with a remedy
            return None


def _splits(calls: Sequence[fx.Node], table: Table, functions: Table) -> list[Split] | None:
    known: dict[str, fx.Graph] = {}
    splits = []
    for call in calls:
        leaves, nesting = pytree.tree_flatten((call.args, call.kwargs))
        inputs = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, fx.Node)))
        if not all(map(_is_usual, inputs)):
            return None
        key = _in_words(call, leaves, inputs)
        if key not in known:
            graph = _graph(table.get(call.target, call.target), leaves, nesting, inputs, functions)
            if not _fits(graph, call, inputs, table):
                return None
            known[key] = graph
        splits.append(Split(call, list(map(leaves.index, inputs)), known[key]))
    return splits


def _is_usual(node: fx.Node) -> bool:
    """Whether torch treats what a node stands for as it treats most inputs: not what is made in inference mode."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt) or (isinstance(value, FakeTensor) and not value.is_inference())


def _in_words(call: fx.Node, leaves: list[Any], inputs: list[fx.Node]) -> str:
    """What calls have in common that are split alike."""
    tensors = [
        (value.dtype, *map(str, (*value.shape, *value.stride()))) if isinstance(value, torch.Tensor) else str(value)
        for value in (node.meta["val"] for node in inputs)
    ]
    given = [("input", inputs.index(leaf)) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    return f"{call.target} {sorted(call.kwargs)} {given} {tensors}"


def _graph(
    function: Callable[..., Any], leaves: list[Any], nesting: Any, inputs: list[fx.Node], table: Table
) -> fx.Graph:
    """What a function does to the inputs of a call, in operators of torch."""

    def called(*values: Any) -> Any:
        given = dict(zip(inputs, values, strict=True))
        args, kwargs = pytree.tree_unflatten(
            [given[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in leaves], nesting
        )
        return function(*args, **kwargs)

    graph = make_fx(called, decomposition_table=dict(table))(*(node.meta["val"] for node in inputs)).graph
    graph.eliminate_dead_code()
    return graph


def _fits(graph: fx.Graph, call: fx.Node, inputs: list[fx.Node], table: Table) -> bool:
    """Whether a graph may stand for a call: split to its end, it only computes, and its results have the types."""
    found, known = (free_unbacked_symbols([node.meta.get("val") for node in nodes]) for nodes in (graph.nodes, inputs))
    if "unbacked_bindings" in call.meta or not found <= known:
        return False
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            return False
        if isinstance(node.target, OpOverload) and (
            node.target == call.target or node.target in table or node.target._schema.is_mutable
        ):
            return False
    (made,) = graph.output_node().args
    results, expected = (
        value if isinstance(value, list | tuple) else [value] for value in (made, call.meta.get("val"))
    )
    return len(results) == len(expected) and all(
        isinstance(result, fx.Node) and _type(result.meta.get("val")) == _type(value)
        for result, value in zip(results, expected, strict=True)
    )


def _type(value: Any) -> Any:
    return (value.dtype, *map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def replace(program: ExportedProgram, splits: Sequence[Split]) -> None:
    """Have a program compute what was traced in place of the calls."""
    graph = program.graph
    with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
        for call, places, traced in splits:
            given = pytree.tree_leaves((call.args, call.kwargs))  # of which some may have been replaced
            inputs = [node for node in traced.nodes if node.op == "placeholder"]
            made: dict[fx.Node, fx.Node] = dict(zip(inputs, (given[place] for place in places), strict=True))
            with graph.inserting_before(call):
                for node in traced.nodes:
                    if node.op == "call_function":
                        made[node] = graph.node_copy(node, made.__getitem__)
                        made[node].meta = {**call.meta, "val": node.meta.get("val")}
            (results,) = traced.output_node().args
            if isinstance(results, fx.Node):
                call.replace_all_uses_with(made[results])
            for user in list(call.users):
                user.replace_all_uses_with(made[results[user.args[1]]])
                graph.erase_node(user)
            graph.erase_node(call)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
