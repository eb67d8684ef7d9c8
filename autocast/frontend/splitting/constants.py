"""Evaluate, with torch itself, what a program computes from no input and no parameter: masks, positions, rotary tables.

    arange(7) -> unsqueeze -> ge 0 -> expand [batch, 1, 7, 7]      becomes      the constant True, of shape [1, 1, 7, 7]

Evaluating with torch gives the very numbers that torch would have used (T5 rounds logarithms to bucket numbers). A
dimension that is only known at run time is held as size 1: a value is kept only while all its entries along such a
dimension are equal, which every operator of `_POINTWISE` and `_ALONG` preserves.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import tvm
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from tvm import relax

from autocast.frontend.nodes import is_random
from autocast.frontend.parameters import is_state

aten = torch.ops.aten

#: Largest constant, in elements, that an import makes out of a computation.
_LIMIT = 1 << 24

#: Each element of the result depends on the elements at the same (broadcast) place only.
_POINTWISE = {
    *(getattr(aten, f"{name}.Tensor".split(".")[0]).Tensor for name in ("add", "sub", "mul", "div", "bitwise_and")),
    *(getattr(aten, name).Tensor for name in ("bitwise_or", "bitwise_xor", "eq", "ne", "lt", "le", "gt", "ge")),
    *(getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or")),
    *(
        getattr(aten, name).default
        for name in ("abs", "bitwise_not", "clamp", "clone", "cos", "exp", "log", "logical_and", "logical_not")
    ),
    *(getattr(aten, name).default for name in ("logical_or", "maximum", "minimum", "neg", "rsqrt", "sin", "sqrt")),
    aten._to_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.where.self,
}

#: Operators that work along one axis (the position and default of that argument): fine if it is not a symbolic one.
_ALONG = {
    aten.cumsum.default: (1, None),
    aten.slice.Tensor: (1, 0),
    aten.select.int: (1, None),
    aten.cat.default: (1, 0),
    aten.flip.default: (1, None),
}

#: Their result has the symbolic dimensions of its input, moved.
_MOVES = {aten.permute.default, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim}

_FILLS = {aten.full.default, aten.ones.default, aten.zeros.default}
_FILLS_LIKE = {aten.full_like.default, aten.ones_like.default, aten.zeros_like.default}
_IMPURE = ("_assert",)

#: What they leave undefined is zero here: whatever is in memory would be a constant otherwise.
_EMPTY = {aten.empty.memory_format, aten.empty_permuted.default}


def constants(program: ExportedProgram) -> dict[fx.Node, torch.Tensor]:
    """The value of every node that is the same in every run, with size 1 along run-time dimensions.

    Constants are: literals lifted into the program, buffers that are not part of the state dictionary and do not change
    (`persistent=False`, which may not be trained or loaded), and whatever is computed from them alone.
    """
    values: dict[fx.Node, Any] = {}
    sources = _constant_inputs(program)
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in sources:
                values[node] = sources[node.name].detach()
            elif node.op == "call_function":
                value = _evaluate(node, values)
                if value is not None:
                    values[node] = value
    return {node: value for node, value in values.items() if isinstance(value, torch.Tensor)}


def smallest(value: torch.Tensor) -> torch.Tensor:
    """The value with size 1 along the axes along which it does not vary."""
    for axis in range(value.dim()):
        first = value.narrow(axis, 0, 1)
        value = first if value.shape[axis] > 1 and bool((value == first).all()) else value
    return value


def as_constant(value: torch.Tensor) -> relax.Expr:
    """A Relax literal with the value of a torch tensor."""
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return relax.const(tvm.runtime.from_dlpack(value.detach().cpu().contiguous().clone()))


def _constant_inputs(program: ExportedProgram) -> dict[str, torch.Tensor]:
    result = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR or (spec.kind is InputKind.BUFFER and not is_state(program, spec)):
            value = program.state_dict[spec.target] if spec.persistent else program.constants[spec.target]
            if value.layout == torch.strided:
                result[spec.arg.name] = value
    return result


def _evaluate(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    meta = node.meta.get("val")
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    name = node.target._schema.name.rpartition("::")[2] if is_operator else ""
    if not (is_operator or node.target is operator.getitem) or name.startswith(_IMPURE) or is_random(node):
        return None
    tensors = [n for n in node.all_input_nodes if not _is_symbolic_scalar(n)]
    needed = tensors[:1] if node.target is aten.index.Tensor else tensors
    if any(n not in values for n in needed) or not isinstance(meta, torch.Tensor | tuple | list):
        return None
    if _size(meta) > _LIMIT:
        return None
    if node.target in _EMPTY and isinstance(meta, torch.Tensor):
        return torch.zeros([1 if i in _symbolic_axes(node) else n for i, n in enumerate(meta.shape)], dtype=meta.dtype)
    static = not any(map(_symbolic_axes, [node, *node.all_input_nodes]))
    if static and all(n in values for n in node.all_input_nodes):
        return node.target(*_map(node.args, values), **_map(node.kwargs, values))
    return _evaluate_uniform(node, values)


def _evaluate_uniform(node: fx.Node, values: dict[fx.Node, Any]) -> torch.Tensor | None:
    """The value of a node with symbolic dimensions, or None where its entries may differ along one of them."""
    target, meta = node.target, node.meta["val"]
    if not isinstance(meta, torch.Tensor):
        return None
    symbolic = _symbolic_axes(node)
    base = [1 if i in symbolic else int(size) for i, size in enumerate(meta.shape)]
    if target in _FILLS:
        if any(isinstance(arg, fx.Node) for arg in node.args[1:]):
            return None
        return target(base, *node.args[1:], **node.kwargs)
    first = node.args[0] if node.args else None
    args, kwargs = _map(node.args, values), _map(node.kwargs, values)
    if (target in _FILLS_LIKE or target in _POINTWISE) and not _has_symbolic_scalar(node):
        return target(*args, **kwargs)
    if target is aten.expand.default:
        return values[first].expand(base)
    if target is aten.index.Tensor:
        return _index(node, values, base)
    if target in _MOVES:
        return target(*args, **kwargs)
    if target in _ALONG and not _has_symbolic_scalar(node):
        position, default = _ALONG[target]
        along = node.args[position] if len(node.args) > position else default
        rank = (first.meta["val"] if isinstance(first, fx.Node) else meta).dim()  # `select` has one axis less
        axes = {a % max(rank, 1) for a in (along if isinstance(along, list | tuple) else [along])}
        if target is aten.cat.default:
            if axes & symbolic:
                return None
            sizes = [t.shape[next(iter(axes))] for t in args[0]]
            parts = [
                t.expand([n if i in axes else s for i, s in enumerate(base)])
                for t, n in zip(args[0], sizes, strict=True)
            ]
            return torch.cat(parts, *args[1:])
        if isinstance(first, fx.Node) and not axes & _symbolic_axes(first):
            return target(*args, **kwargs)
    return None


def _index(node: fx.Node, values: dict[fx.Node, Any], base: list[int]) -> torch.Tensor | None:
    """`data[i, j]`: an index into an axis along which all entries are equal may be 0."""
    data, indices = node.args
    symbolic = _symbolic_axes(data)
    rows = []
    for axis, index in enumerate(indices):
        if index is None or (axis not in symbolic and (index not in values or _symbolic_axes(index))):
            return None
        rows.append(
            torch.zeros([1] * index.meta["val"].dim(), dtype=torch.int64) if axis in symbolic else values[index]
        )
    return values[data][tuple(rows)].expand(base)


def _map(argument: Any, values: dict[fx.Node, Any]) -> Any:
    return fx.node.map_arg(argument, lambda n: values.get(n, n))


def _size(meta: Any) -> int:
    metas = meta if isinstance(meta, tuple | list) else [meta]
    sizes = 0
    for item in metas:
        size = 1
        for dim in getattr(item, "shape", ()):
            size *= dim if isinstance(dim, int) else 1
        sizes += size
    return sizes


def _symbolic_axes(node: fx.Node) -> set[int]:
    meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor):
        return {i for i, size in enumerate(meta.shape) if not isinstance(size, int)}
    return set()


def _is_symbolic_scalar(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _has_symbolic_scalar(node: fx.Node) -> bool:
    return any(_is_symbolic_scalar(n) for n in node.all_input_nodes)
