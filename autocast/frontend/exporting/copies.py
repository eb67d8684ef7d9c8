"""Copies that torch's functional form leaves out, or makes where the module has none."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from autocast.errors import ImportModelError

aten = torch.ops.aten


def broadcast_copies(program: ExportedProgram) -> None:
    """Write out that `x.copy_(row)` repeats the row: where all of x is written, torch's functional form has the row.

    Raises
    ------
    ImportModelError
        The module assigns a tensor of another shape to a buffer, which torch.export makes such a copy of.
    """
    names = program.graph_signature.inputs_to_buffers
    for node in program.graph.find_nodes(op="call_function", target=aten.copy_.default):
        into, value = node.args[:2]
        wanted, given = _sizes(into), _sizes(value)
        left = _sizes(node) if "val" in node.meta else wanted
        if left != wanted:  # export notes what was assigned
            raise ImportModelError(
                f"from_torch: the buffer {names.get(into.name, into.name)} is [{', '.join(wanted)}], and the module "
                f"assigns a tensor of [{', '.join(given)}] to it; expected the same shape. Make it as large as it "
                "becomes, and write into a part of it, or pass it to the module and return it"
            )
        if given != wanted:
            with program.graph.inserting_before(node):
                node.replace_input_with(value, program.graph.call_function(aten.expand_as.default, (value, into)))


def without_idle_dropout(program: ExportedProgram) -> None:
    """Erase dropout that drops nothing: it is its input, of which torch's functional form makes a copy.

    What is written into one of the two is read from the other.
    """
    modules = [module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
        for module in modules:
            calls = module.graph.find_nodes(op="call_function", target=aten.dropout.default)
            idle = [node for node in calls if node.args[1] == 0 or not node.args[2]]
            for node in idle:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
            if idle:
                module.recompile()


def _sizes(node: fx.Node) -> list[str]:
    """As words: comparing sizes that vary would make conditions of them."""
    return list(map(str, node.meta["val"].shape))
