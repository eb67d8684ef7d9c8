"""What those share who write a new `main` around the body of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autocast.frontend.names import variable_name
from autocast.ir import ALIGNMENT, PlacedBuilder
from autocast.ir.places import canonicalize_bindings
from autocast.training.paths import has_branches, straight_line


def new_function(
    params: Sequence[relax.Var],
    attrs: dict[str, Any],
    build: Callable[[PlacedBuilder], Mapping[str, relax.Expr]],
    mod: tvm.IRModule,
) -> tvm.IRModule:
    """`mod` with a new `main`: one block, in which `build(builder)` emits and whose results it names.

    The result is a tensor if `build` returns one expression, else a tuple. What the results do not need is left out.
    """
    functions = {gv: function for gv, function in mod.functions.items() if gv.name_hint != "main"}
    builder = PlacedBuilder(tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos))
    with builder.function("main", list(params), attrs=attrs):
        with new_block(builder, mod["main"]):
            outputs = [builder.emit_output(result, variable_name(name)) for name, result in build(builder).items()]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else outputs)
    return relax.transform.DeadCodeElimination(["main"])(canonicalize_bindings(builder.get()))


def new_block(builder: relax.BlockBuilder, function: relax.Function) -> AbstractContextManager[Any]:
    """A block to emit the body of `function` into: a dataflow block, unless it has branches."""
    return nullcontext() if has_branches(function) else builder.dataflow()


def emit_body(builder: relax.BlockBuilder, function: relax.Function) -> list[relax.Expr]:
    """Emit all bindings of `function`, whose parameters are those of the function being built; its results."""
    bindings, results = straight_line(function)
    for binding in bindings:
        builder.emit_normalized(binding)
    return results


def parameter(name: str, shape: Sequence[Any], dtype: str) -> relax.Var:
    """A parameter of main for the model's parameter `name`."""
    return relax.Var(variable_name(name), relax.TensorType(shape, dtype))


def zeros(shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
    """A tensor of zeros, whose memory the system provides when it is first written: an optimizer has many of them."""
    count, itemsize = int(np.prod(shape, dtype=np.int64)), np.dtype(dtype).itemsize
    buffer = np.zeros((count + 1) * itemsize + ALIGNMENT, "uint8")
    start = -buffer.ctypes.data % ALIGNMENT
    array = buffer[start : start + (count + 1) * itemsize].view(dtype)  # numpy moves no pointer to where nothing is
    return tvm.runtime.from_dlpack(array[:count].reshape(tuple(shape)))
