"""A part that a module has under several names changes its buffers under all of them: torch's export sees several."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from autocast.runtime.tensors import memory_of


def read_by_one_name(program: ExportedProgram) -> None:
    """Have buffers that are one tensor read and written by the first of their names; the others stay in the state.

    Before::                                             After::

        def forward(b_1_mean, b_3_mean, x):              def forward(b_1_mean, x):
            y = norm(x, b_1_mean)                            y = norm(x, b_1_mean)
            return norm(y, b_3_mean)                         return norm(y, b_1_mean)
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    count = len(program.graph.nodes)
    first: dict[tuple[object, ...], InputSpec] = {}
    specs = program.graph_signature.input_specs
    for spec in list(specs):
        value = program.state_dict.get(spec.target or "")
        if spec.kind is not InputKind.BUFFER or not isinstance(value, torch.Tensor) or not value.numel():
            continue
        same = first.setdefault((memory_of(value), value.shape, value.stride(), value.storage_offset()), spec)
        if same is not spec:
            nodes[spec.arg.name].replace_all_uses_with(nodes[same.arg.name])
            program.graph.erase_node(nodes[spec.arg.name])
            specs.remove(spec)
    if len(program.graph.nodes) < count:
        program.graph_module.recompile()
