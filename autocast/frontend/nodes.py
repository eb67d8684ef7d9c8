"""Where the nodes of an exported torch program come from: their modules, and the regions their author wrote them in."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import traceback
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from autocast.errors import ImportModelError
from autocast.frontend.marks import annotate
from autocast.ir.places import REGIONS, Place, active_region, current_region

_KEY = "autocast_region"
_READS_CONVERTED = "autocast_reads_converted"

#: `x.to("cpu")`, which says nothing of a dtype, is `to.dtype_layout`.
_CONVERSIONS = (
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.device,
    torch.ops.aten.to.other,
    torch.ops.aten.type_as.default,
)
_LOW = (torch.bfloat16, torch.float16)


def module_path(node: fx.Node) -> str:
    """The dotted path of the submodule that a node comes from; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return path.removeprefix("L[").removeprefix("'self'].")


def node_place(node: fx.Node) -> Place:
    """The module and the region of a node: its own, or else the one in which it is imported.

    Raises
    ------
    ImportModelError
        The region is none that this version knows: the program was exported with another one.
    """
    region = (node.meta.get("custom") or {}).get(_KEY, "")
    if region not in REGIONS:
        raise ImportModelError(
            f"it is in a region {region!r}; expected one of {', '.join(map(repr, REGIONS[1:]))}. Export it again with "
            "this version"
        )
    return Place(module_path(node), region or current_region())


def is_composite(target: Any) -> bool:
    """Whether torch's dispatcher splits an operator into others."""
    return isinstance(target, OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def operator_of(node: fx.Node) -> Any:
    """The operator that a node runs.

    torch.export has what writes into its arguments called by another, on copies, which it returns.
    """
    return node.args[0] if node.target is auto_functionalized_v2 else node.target


def name_of(node: fx.Node) -> str:
    """The name of what a node calls, as converters are listed by: `add.Tensor`, `mine::add.Tensor` of other libraries.

    A library's operator may have the name of one of torch's, and compute something else.
    """
    name: str = node.target.__name__
    is_others = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace != "aten"
    return f"{node.target.namespace}::{name}" if is_others else name


def is_random(node: fx.Node) -> bool:
    """Whether an operator draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def results_read(node: fx.Node) -> set[int]:
    """Which of an operator's several results somebody reads."""
    return {user.args[1] for user in node.users if user.target is operator.getitem and user.users}


def has_complex(node: fx.Node) -> bool:
    """Whether complex numbers are among what `node` takes or computes."""
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return any(isinstance(part, torch.Tensor) and part.is_complex() for part in parts)


def mark_conversions(program: ExportedProgram) -> None:
    """Mark the nodes that read what their author converted from float32 to float32 (`x.float()`).

    torch drops such conversions when it decomposes the program, and keeps the marks. What reads `x` itself after
    `x.float()` reads the conversion: eagerly both are one tensor, and so they are to torch.export.
    """
    converted: set[fx.Node] = set()
    for node in program.graph.nodes:
        if _changes_nothing(node):
            converted.add(node)
        elif not converted.isdisjoint(node.all_input_nodes):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), _READS_CONVERTED: True}


def reads_converted(node: fx.Node) -> bool:
    """Whether a node was marked by `mark_conversions`."""
    return _READS_CONVERTED in (node.meta.get("custom") or {})


def narrows(node: fx.Node) -> bool:
    """Whether a node of a decomposed program converts a tensor to a 16-bit dtype."""
    return node.target is torch.ops.aten._to_copy.default and node.kwargs.get("dtype") in _LOW


def makes_floats(node: fx.Node) -> bool:
    """Whether a node computes floats of one tensor of whole numbers or truth values."""
    given = node.all_input_nodes[0].meta.get("val") if len(node.all_input_nodes) == 1 else None
    if not isinstance(given, torch.Tensor) or given.is_floating_point():
        return False
    return isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].is_floating_point()


def _changes_nothing(node: fx.Node) -> bool:
    """Whether a node converts a float32 tensor to float32, because its author wrote so."""
    if node.target not in _CONVERSIONS:
        return False
    return all(value.meta["val"].dtype == torch.float32 for value in (node, *node.all_input_nodes))


def in_region(node: fx.Node, region: str) -> None:
    """Put a node in a region, unless its author put it in one."""
    node.meta["custom"] = {_KEY: region, **(node.meta.get("custom") or {})}


@contextmanager
def torch_region(region: str, autocast_off: bool) -> Iterator[None]:
    """What torch computes inside is in `region`: nodes that torch.export records, and tensors.

    Annotations of nodes survive decompositions, `torch.export.save` and exporting an exported program again. They are
    state of the process, as torch.export itself is, so they are made while exporting only, and by the thread that
    traces; everything else sees `active_region`.
    """
    if torch.compiler.is_dynamo_compiling():  # reads neither context variables nor torch's own settings
        with annotate({_KEY: region}):
            yield
    elif is_fx_symbolic_tracing() or (torch.compiler.is_exporting() and torch._C._len_torch_function_stack() > 0):
        # In this order: what is preserved is restored first, which an annotation around has written into.
        with active_region(region), annotate({_KEY: region}), traceback.preserve_node_meta():
            yield
    elif autocast_off:
        with active_region(region), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    else:
        with active_region(region):
            yield


def control_flow(graph: fx.Graph) -> list[str]:
    """The operators of a graph that take other graphs, by name: an exported program has no other attributes."""
    return sorted({user.target.__name__ for part in graph.find_nodes(op="get_attr") for user in part.users})


def graph_of(part: fx.Node) -> fx.Graph:
    """The graph that a node names, which operators of control flow take."""
    return operator.attrgetter(str(part.target))(part.graph.owning_module).graph


def symbols_of(part: fx.Node) -> set[str]:
    """The symbols of the sizes in the graph that a node names, and in those that it names itself."""
    graph = graph_of(part)
    found = set().union(*(symbols_of(inner) for inner in graph.find_nodes(op="get_attr")))
    for node in graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            sizes = value.shape if isinstance(value, torch.Tensor) else [value]
            found |= {str(s) for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}
    return found


def read_by(output: fx.Node) -> set[fx.Node]:
    """The nodes that a graph's outputs depend on: others are checks that raise, and what these alone read."""
    read: set[fx.Node] = set()
    found = [output]
    while found:
        node = found.pop()
        if node not in read:
            read.add(node)
            found += node.all_input_nodes
    return read
