"""Where the nodes of an exported torch program come from: their modules, and the regions their author wrote them in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx
from torch.fx import traceback
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from autocast.errors import ImportModelError
from autocast.ir.places import REGIONS, Place, active_region, current_region

_KEY = "autocast_region"


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


@contextmanager
def torch_region(region: str, autocast_off: bool) -> Iterator[None]:
    """What torch computes inside is in `region`: nodes that torch.export records, and tensors.

    Annotations of nodes survive decompositions, `torch.export.save` and exporting an exported program again. They are
    state of the process, as torch.export itself is, so they are made while exporting only, and by the thread that
    traces; everything else sees `active_region`.
    """
    if torch.compiler.is_dynamo_compiling():  # reads neither context variables nor torch's own settings
        with traceback.annotate({_KEY: region}):
            yield
    elif is_fx_symbolic_tracing() or (torch.compiler.is_exporting() and torch._C._len_torch_function_stack() > 0):
        # In this order: what is preserved is restored first, which an annotation around has written into.
        with active_region(region), traceback.annotate({_KEY: region}), traceback.preserve_node_meta():
            yield
    elif autocast_off:
        with active_region(region), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    else:
        with active_region(region):
            yield
