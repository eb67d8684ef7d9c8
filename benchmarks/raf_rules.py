"""Casting rules like RAF's, so that its greedy pass and ours are compared on equal terms."""

from __future__ import annotations

import tvm

from autocast import amp
from autocast.ir import op_name, relax_functions
from type_hints import follow, full, low, tensor_arguments

ALWAYS = ("relax.matmul", "relax.nn.conv2d", "relax.nn.attention")
NEVER = ("relax.nn.softmax", "relax.nn.gelu", "relax.exp", "relax.power", "relax.multiply", "relax.sum")


def raf_rules(mod: tvm.IRModule) -> amp.CustomTypeHint:
    """RAF's three families for the operators of a module: always cast, never cast, follow the inputs for all others."""
    names = {op_name(b.value) for _, f in relax_functions(mod) for block in f.body.blocks for b in block.bindings}
    tensors = {name: known for name in names if name is not None and (known := tensor_arguments(name))}
    rules = {name: follow(known) for name, known in tensors.items()}
    rules.update({name: low(2) for name in ALWAYS if name in names})
    rules.update({name: full(tensors[name]) for name in NEVER if name in names})
    return amp.CustomTypeHint(rules)
