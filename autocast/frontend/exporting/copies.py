"""What is copied into a tensor of another shape."""

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


def _sizes(node: fx.Node) -> list[str]:
    """As words: comparing sizes that vary would make conditions of them."""
    return list(map(str, node.meta["val"].shape))
