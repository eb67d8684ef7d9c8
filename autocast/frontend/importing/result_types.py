"""What a converter made of a node is of the type that torch computes: rank, dtype, and sizes as far as they are known.

Sizes that vary are compared at those of the example. TVM infers some of its own: of a slice from 2 to 100 it says 98.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import tvm
import tvm_ffi
from torch import fx
from torch.export import ExportedProgram
from tvm import relax, tirx

from autocast.errors import ImportModelError
from autocast.frontend.nodes import results_read

#: The shape and the dtype of what holds a tensor of torch's.
_TypeOf: TypeAlias = Callable[[torch.Tensor], tuple[list[Any], str]]


def example_sizes(program: ExportedProgram) -> dict[str, int]:
    """By torch's symbol its value for the example, of those that are sizes of inputs."""
    sizes = {}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol and size.node.hint is not None:
                sizes[str(size.node.expr)] = int(size.node.hint)
    return sizes


def check_type(node: fx.Node, result: Any, type_of: _TypeOf, values: Mapping[tirx.Var, int]) -> None:
    """ImportModelError unless `result` has the type that torch says `node` has; of several those that are read.

    `values` are those of sizes for the example.
    """
    expected = node.meta.get("val")
    if not isinstance(expected, list | tuple) or not isinstance(result, list):
        _check_one(expected, result, type_of, values)
        return
    made = {index for index, part in enumerate(result) if part is not None or expected[index] is None}
    if missing := results_read(node) - made:
        raise ImportModelError(f"its result {min(missing)} is read, of which its converter knows nothing")
    for one, part in zip(expected, result, strict=False):
        _check_one(one, part, type_of, values)


def _check_one(expected: Any, result: Any, type_of: _TypeOf, values: Mapping[tirx.Var, int]) -> None:
    if not isinstance(expected, torch.Tensor) or not isinstance(result, relax.Expr):
        return
    got, (shape, dtype) = result.ty, type_of(expected)
    same = isinstance(got, relax.TensorType) and str(got.dtype) == dtype and got.ndim == len(shape)
    if same and got.shape is not None:  # without one, operands do not agree, and nothing can be compiled of it
        same = all(_may_be_equal(a, b, values) for a, b in zip(got.shape.values, shape, strict=True))
    if not same or got.shape is None:
        raise ImportModelError(
            f"it was imported as {got}; torch computes {expected.dtype} of shape {tuple(expected.shape)}"
        )


def _may_be_equal(a: Any, b: Any, values: Mapping[tirx.Var, int]) -> bool:
    """Whether two sizes are equal for the example; True where nothing is known of one."""
    if isinstance(a, tirx.IntImm) and isinstance(b, int):
        return int(a) == b
    if str(a) == str(b):
        return True
    known = _evaluated(a, values), _evaluated(b, values)
    return None in known or known[0] == known[1]


def _evaluated(size: Any, values: Mapping[tirx.Var, int]) -> int | None:
    if isinstance(size, int):
        return size
    numbers = {var: tirx.IntImm("int64", number) for var, number in values.items()}
    known = tvm_ffi.structural_map(size, (tirx.Var, lambda var: numbers.get(var, var)))
    number = tvm.sym.Analyzer().simplify(known)
    return int(number) if isinstance(number, tirx.IntImm) else None
