"""Dynamic dimensions: one short spelling, and torch.export's own, turned into what torch.export wants."""

from __future__ import annotations

import inspect
import itertools
import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.messages import is_whole

_SPELLING = (
    'dynamic={"batch": ("input_ids", 0, 1, 64)} (dimension: input name or position, axis, minimum, maximum), a list of '
    'such tuples where several inputs share the dimension, "*" for every input, torch\'s own '
    '{"input_ids": {0: torch.export.Dim("batch", min=1, max=64)}}, or the same in the order of the inputs, or "auto"'
)


@dataclass(frozen=True)
class Leaf:
    """One tensor or plain value among the example inputs, in the order in which the imported model takes them."""

    name: str
    path: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class DynamicAxis:
    """Axis `axis` of the input `leaf` is the symbolic dimension `dim`; Relax's symbolic variable gets its name."""

    leaf: int
    axis: int
    dim: Any
    name: str


def input_leaves(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """The example inputs as torch.export flattens them, under the names of forward's parameters (`hx.0` if nested)."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    variadic = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(parameters))
    if len(args) > len(parameters) and variadic == len(parameters):
        raise ImportModelError(
            f"from_torch: got {len(args)} positional example inputs, but {type(module).__name__}.forward takes "
            f"{len(parameters)} ({', '.join(p.name for p in parameters)})."
        )

    def name_of(path: tuple[Any, ...]) -> str:
        first, rest = path[1], path[2:]
        if path[0].idx == 1:
            head = str(first.key)
        elif first.idx < variadic:
            head = parameters[first.idx].name
        else:
            head = f"{parameters[variadic].name}.{first.idx - variadic}"
        return ".".join([head, *(str(getattr(k, "idx", getattr(k, "key", getattr(k, "name", k)))) for k in rest)])

    flat, _ = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    return [Leaf(name_of(path), path, value) for path, value in flat]


def parse(
    dynamic: Mapping[str, Any] | Sequence[Any] | tuple[DynamicAxis, ...] | None, leaves: Sequence[Leaf]
) -> list[DynamicAxis]:
    """Every dynamic axis that `dynamic` asks for; ImportModelError where it names what is not there."""
    if dynamic is None or (isinstance(dynamic, tuple) and all(isinstance(axis, DynamicAxis) for axis in dynamic)):
        return list(dynamic or ())
    if isinstance(dynamic, tuple | list):
        dynamic = _by_name(dynamic, leaves)
    if not isinstance(dynamic, Mapping):
        raise ImportModelError(f"from_torch: dynamic is a {type(dynamic).__name__}; expected {_SPELLING}.")
    axes: list[DynamicAxis] = []
    for key, value in dynamic.items():
        axes += _torch_axes(key, value, leaves) if _is_torch_spelling(value) else _named_axes(key, value, leaves)
    named: dict[tuple[int, int], str] = {}
    for axis in axes:
        _check_axis(axis, leaves[axis.leaf])
        other = named.setdefault((axis.leaf, axis.axis), axis.name)
        if other != axis.name:
            raise ImportModelError(
                f"from_torch: dynamic calls axis {axis.axis} of {leaves[axis.leaf].name!r} both {other!r} and "
                f"{axis.name!r}; expected one name for it. Leave one out."
            )
    return axes


def _by_name(dynamic: Sequence[Any], leaves: Sequence[Leaf]) -> dict[str, Any]:
    """torch's spelling in the order of the arguments, under their names."""
    names = list(dict.fromkeys(leaf.name.partition(".")[0] for leaf in leaves))
    if len(dynamic) != len(names):
        raise ImportModelError(
            f"from_torch: dynamic is a {type(dynamic).__name__} of {len(dynamic)}, and there are {len(names)} inputs: "
            f"{', '.join(names)}; expected one for each, None where nothing varies, or {_SPELLING}."
        )
    for name, given in zip(names, dynamic, strict=True):
        if not _is_torch_spelling(given):
            raise ImportModelError(
                f"from_torch: dynamic has {given!r} for the input {name!r}; expected None, or a torch.export.Dim by "
                f"axis: {{0: torch.export.Dim('batch')}}. All spellings: {_SPELLING}."
            )
    return dict(zip(names, dynamic, strict=True))


def grown(axes: Sequence[DynamicAxis], leaves: Sequence[Leaf], example: Any) -> Any:
    """Example inputs that vary: torch.export takes sizes 0 and 1 for constants, so tensors of zeros stand for those.

    Tensors that vary are others over the same memory, as torch.export leaves marks on what it is given; dense ones, as
    a size that varies may not be compared with the distance of rows in the memory of a larger tensor.

    Parameters
    ----------
    axes, leaves
        Which axes vary, and the inputs.
    example
        The inputs as a tree, `(args, kwargs)`.
    """
    common: dict[str, int] = {}
    for axis in axes:
        size = leaves[axis.leaf].value.shape[axis.axis]
        common[axis.name] = max(common.get(axis.name, 2), size, getattr(axis.dim, "min", None) or 0)
    shapes = {axis.leaf: list(leaves[axis.leaf].value.shape) for axis in axes}
    for axis in axes:
        if shapes[axis.leaf][axis.axis] < 2:
            shapes[axis.leaf][axis.axis] = common[axis.name]
    flat, spec = pytree.tree_flatten(example)
    for leaf, shape in shapes.items():
        grows = list(flat[leaf].shape) != shape
        varies = flat[leaf].new_zeros(shape) if grows else flat[leaf].detach().contiguous()
        flat[leaf] = varies.requires_grad_(flat[leaf].requires_grad)
    return pytree.tree_unflatten(flat, spec)


def export_shapes(
    axes: Sequence[DynamicAxis], module: torch.nn.Module, args: Any, kwargs: Any
) -> dict[str, Any] | None:
    """The `dynamic_shapes` argument of torch.export.export: by `forward`'s names, in the structure of the inputs."""
    if not axes:
        return None
    by_leaf: dict[int, dict[int, Any]] = {}
    for axis in axes:
        by_leaf.setdefault(axis.leaf, {})[axis.axis] = axis.dim
    leaves = itertools.count()

    def shaped(value: Any) -> Any:
        kind = pytree._get_node_type(value)
        if kind not in pytree.SUPPORTED_NODES:
            return by_leaf.get(next(leaves))
        parts, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        shapes = [shaped(part) for part in parts]
        # Of classes that somebody registered, torch.export takes the parts.
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(shapes, context) if kind in pytree.BUILTIN_TYPES else shapes

    signature = inspect.signature(module.forward)
    return signature.bind(*shaped(tuple(args)), **shaped(dict(kwargs))).arguments


def _is_torch_spelling(value: Any) -> bool:
    """Whether it says what varies as torch.export does: nothing, by axis, or nested as the input is."""
    if isinstance(value, tuple | list):
        return bool(value) and all(_is_dim(part) or _is_torch_spelling(part) for part in value)
    return value is None or isinstance(value, dict)


def _is_dim(value: Any) -> bool:
    named = hasattr(value, "__name__") and hasattr(value, "min") and hasattr(value, "max")
    return named or isinstance(value, type(torch.export.Dim.DYNAMIC))


def _torch_axes(key: Any, value: Any, leaves: Sequence[Leaf]) -> Iterator[DynamicAxis]:
    for name, dims in _of_leaves(key, value, [leaf.name for leaf in leaves]):
        if not isinstance(dims, dict | list | tuple):
            raise ImportModelError(
                f"from_torch: dynamic[{key!r}] = {value!r} has {dims!r} for {name!r}; expected a torch.export.Dim by "
                f"axis there: {_SPELLING}."
            )
        for axis, dim in dims.items() if isinstance(dims, dict) else enumerate(dims):
            if dim is None:
                continue
            if not isinstance(axis, int) or not _is_dim(dim):
                raise ImportModelError(
                    f"from_torch: dynamic[{name!r}] maps {axis!r} to {dim!r}; expected an axis and a torch.export.Dim: "
                    f"{_SPELLING}."
                )
            for leaf in _find(name, leaves):
                own = f"{leaves[leaf].name}_{axis}".replace(".", "_")
                yield DynamicAxis(leaf, axis, dim, str(getattr(dim, "__name__", own)))


def _of_leaves(name: Any, value: Any, leaves: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """What torch's spelling says of each tensor of an input: it is nested as the input is."""
    inner = [leaf[len(name) + 1 :] for leaf in leaves if leaf.startswith(f"{name}.")] if isinstance(name, str) else []
    if value is None and not inner and name not in leaves:
        raise ImportModelError(f"from_torch: dynamic[{name!r}] is None; expected {_SPELLING}.")
    if value is None:
        return
    if not inner and isinstance(value, dict) and value.keys() <= {leaf.partition(".")[0] for leaf in leaves}:
        parts = value  # the names within `**kwargs`
    elif not inner:
        yield name, value
        return
    elif isinstance(value, dict):
        parts = {f"{name}.{key}": part for key, part in value.items()}
    else:
        names = list(dict.fromkeys(f"{name}.{one.partition('.')[0]}" for one in inner))
        if len(names) != len(value):
            raise ImportModelError(
                f"from_torch: dynamic[{name!r}] has {len(value)} parts: {value!r}; expected one for each of "
                f"{', '.join(names)}, None where nothing varies."
            )
        parts = dict(zip(names, value, strict=True))
    for one, part in parts.items():
        yield from _of_leaves(one, part, leaves)


def _named_axes(name: Any, value: Any, leaves: Sequence[Leaf]) -> Iterator[DynamicAxis]:
    rows = list(value) if isinstance(value, list) else [value]
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or not rows:
        raise ImportModelError(
            f"from_torch: dynamic[{name!r}] = {value!r} says no dynamic dimension; expected a name, and {_SPELLING}."
        )
    for row in rows:
        ok = isinstance(row, tuple) and 2 <= len(row) <= 4 and is_whole(row[1])
        if not ok or not all(bound is None or is_whole(bound) for bound in row[2:]):
            raise ImportModelError(f"from_torch: dynamic[{name!r}] is {row!r}; expected {_SPELLING}.")
    bounds = {tuple(row[2:]) for row in rows if len(row) > 2}
    if len(bounds) > 1:
        raise ImportModelError(f"from_torch: dimension {name!r} has several bounds: {sorted(bounds, key=str)}.")
    dim = _bounded(name, *bounds.pop()) if bounds else torch.export.Dim.DYNAMIC
    for row in rows:
        for leaf in _find(row[0], leaves):
            yield DynamicAxis(leaf, row[1], dim, name)


def _bounded(name: str, lower: int | None, upper: int | None = None) -> Any:
    lower = 1 if lower is None else lower
    if lower < 0 or (upper is not None and upper <= lower):
        raise ImportModelError(
            f"from_torch: dimension {name!r} has the bounds {lower} to {upper}; expected 0 <= minimum < maximum."
        )
    return torch.export.Dim(name, min=lower, max=upper)


def _find(which: Any, leaves: Sequence[Leaf]) -> list[int]:
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf.value, torch.Tensor)]
    if which == "*":
        return tensors
    if isinstance(which, int) and 0 <= which < len(tensors):
        return [tensors[which]]
    found = [i for i in tensors if leaves[i].name == which]
    if not found:
        names = ", ".join(leaves[i].name for i in tensors)
        raise ImportModelError(f"from_torch: dynamic names the input {which!r}, but the tensor inputs are: {names}.")
    return found


def _check_axis(axis: DynamicAxis, leaf: Leaf) -> None:
    rank = leaf.value.dim()
    if not 0 <= axis.axis < rank:
        raise ImportModelError(
            f"from_torch: dynamic makes axis {axis.axis} of {leaf.name!r} the dimension {axis.name!r}, but it has rank "
            f"{rank}; expected an axis from 0 to {rank - 1}."
        )
    size = leaf.value.shape[axis.axis]
    lower, upper = getattr(axis.dim, "min", None) or 0, getattr(axis.dim, "max", None)
    if upper is not None and upper < 2:
        raise ImportModelError(
            f"from_torch: dynamic bounds {axis.name!r} by {upper}, and torch.export takes sizes 0 and 1 for constants; "
            "expected a maximum of 2 or more. Leave it out, for examples of that size alone"
        )
    if not lower <= size <= (size if upper is None else upper):
        raise ImportModelError(
            f"from_torch: the example of {leaf.name!r} has size {size} along axis {axis.axis}, outside the bounds of "
            f"{axis.name!r}: {lower} to {upper}."
        )
