"""What moves elements and computes nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from autocast.errors import UnsupportedError
from autocast.ir import ConstantExpr
from autocast.torch_target.asked import Asked, Row, Value


def _reshape(asked: Asked) -> Value:
    return asked.args[0].reshape(asked.shape)


def _view(asked: Asked) -> Value:
    """The same bytes as a tensor of another shape and dtype."""
    data, _, _, offset = asked.args
    first = 0 if offset in (None, ()) else offset
    count = math.prod(asked.shape) * asked.dtype.itemsize
    return data.reshape(-1).view(torch.uint8)[first : first + count].view(asked.dtype).reshape(asked.shape)


def _permute(asked: Asked) -> Value:
    axes = asked.attrs.axes
    return asked.args[0].permute(tuple(reversed(range(asked.rank()))) if axes is None else asked.axes("axes"))


def _concat(asked: Asked) -> Value:
    parts = asked.args[0]
    if asked.attrs.axis is None:
        return torch.cat([part.reshape(-1) for part in parts])
    return torch.cat(parts, int(asked.attrs.axis))


def _split(asked: Asked) -> Value:
    axis, fields = asked.axis(), asked.call.ty.fields
    sizes = [asked.size(field.shape.values[axis]) for field in fields]
    parts = torch.split(asked.args[0], sizes, axis)
    return tuple(parts[i] for i in range(len(fields)))


def _meshgrid(asked: Asked) -> Value:
    parts = asked.args[0]
    grids = torch.meshgrid(*parts, indexing=str(asked.attrs.indexing or "ij"))
    return tuple(grids[i] for i in range(len(parts)))


def _strided_slice(asked: Asked) -> Value:
    x, axes, begin, end, *rest = asked.args
    steps = rest[0] if rest and rest[0] is not None else (1,) * len(axes)
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        x = _cut(x, int(axis) % asked.rank(), asked.shape_of(0)[int(axis)], first, last, step)
    return x


def _cut(x: Value, axis: int, size: Value, first: Value, last: Value, step: Value) -> Value:
    """A slice along one axis; from the end to the front where the step is negative."""
    if not isinstance(step, int) or step > 0:
        index = (slice(None),) * axis + (slice(first, _whole(last), step),)
        return x[index] if axis else x[index[0]]
    if all(isinstance(value, int) for value in (size, first, last)):
        places = list(range(size))[_from_end(first, last, size, step)]
        return x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    turned = torch.flip(x, [axis])
    return _cut(turned, axis, size, size - 1 - first, size - 1 - last, -step)


def _from_end(first: int, last: int, size: int, step: int) -> slice:
    first, last = (min(max(at + size if at < 0 else at, -1), size - 1) for at in (first, last))
    return slice(first, None if last < 0 else last, step) if first >= 0 else slice(0, 0)


def _whole(last: Value) -> Value:
    """The end of a slice, None where it is beyond any size."""
    return None if isinstance(last, int) and last >= 2**31 - 1 else last


def _pad(asked: Asked) -> Value:
    widths = asked.integers("pad_width")
    mode = str(asked.attrs.pad_mode)
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in reversed(range(asked.rank()))]
    flat = [width for pair in pairs for width in pair]
    if mode == "constant":
        return F.pad(asked.args[0], flat, value=float(asked.attrs.pad_value))
    x, rank = asked.args[0], asked.rank()
    padded = max(axis for axis in range(rank) if any(widths[2 * axis : 2 * axis + 2])) if any(widths) else -1
    first = next((axis for axis in range(rank) if any(widths[2 * axis : 2 * axis + 2])), rank)
    for axis in range(first, padded + 1):
        x = _along(x, axis, rank, widths[2 * axis : 2 * axis + 2], mode)
    return x


def _along(x: Value, axis: int, rank: int, widths: tuple[int, ...], mode: str) -> Value:
    """Padding along one axis: torch pads the last ones only."""
    if not any(widths):
        return x
    moved = torch.movedim(x, axis, -1)
    flat = torch.flatten(moved, 0, -2)[None] if rank > 1 else moved[None, None]
    padded = F.pad(flat, widths, mode=mode)
    shape = (*(moved.size(i) for i in range(rank - 1)), padded.size(-1))
    return torch.movedim(padded.reshape(shape), -1, axis)


def _pixel_shuffle(asked: Asked) -> Value:
    return F.pixel_shuffle(asked.args[0], int(asked.attrs.upscale_factor))


def _same(asked: Asked) -> Value:
    return asked.args[0]


def _collapse(asked: Asked) -> Value:
    return asked.args[0].sum_to_size(asked.shape)


def _shape_of(asked: Asked) -> Value:
    return asked.shape_of(0)


def _shape_to_tensor(asked: Asked) -> Value:
    sizes = [torch.full((1,), size, dtype=torch.int64) for size in asked.args[0]]
    return torch.cat(sizes) if sizes else torch.zeros(0, dtype=torch.int64)


def _tensor_to_shape(asked: Asked) -> Value:
    return tuple(asked.args[0][i].item() for i in range(int(asked.call.ty.ndim)))


def _size(asked: Asked) -> Value:
    return torch.full((), math.prod(asked.shape_of(0)), dtype=asked.dtype)


def _dynamic_strided_slice(asked: Asked) -> Value:
    x, *numbers = asked.args
    steps = asked.call.args[3]
    if not isinstance(steps, ConstantExpr):
        raise UnsupportedError(
            f"to_torch: {asked.name} has strides that are computed, which torch slices by only where they are known; "
            "expected a constant"
        )
    for axis, step in enumerate(steps.value.numpy().tolist()):
        first, last = (
            arg.value.numpy().tolist()[axis] if isinstance(arg, ConstantExpr) else value[axis].item()
            for arg, value in zip(asked.call.args[1:3], numbers[:2], strict=True)
        )
        x = _cut(x, axis, asked.shape_of(0)[axis], first, last, step)
    return x


def _layout_transform(asked: Asked) -> Value:
    mapping = asked.attrs.index_map
    axes = list(mapping.initial_indices)
    order = [axes.index(index) if index in axes else -1 for index in mapping.final_indices]
    if sorted(order) != list(range(asked.rank())):
        raise UnsupportedError(f"to_torch: {asked.name} has index_map={mapping}, expected a permutation of the axes")
    return asked.args[0].permute(order)


def _repeat(asked: Asked) -> Value:
    axis: Any = None if asked.attrs.axis is None else int(asked.attrs.axis)
    return torch.repeat_interleave(asked.args[0], int(asked.attrs.repeats), axis)


ROWS: dict[str, Row] = {
    "reshape": _reshape,
    "flatten": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "nn.batch_flatten": _reshape,
    "broadcast_to": lambda asked: asked.args[0].expand(asked.shape),
    "permute_dims": _permute,
    "concat": _concat,
    "stack": lambda asked: torch.stack(asked.args[0], int(asked.attrs.axis or 0)),
    "split": _split,
    "meshgrid": _meshgrid,
    "strided_slice": _strided_slice,
    "flip": lambda asked: torch.flip(asked.args[0], [int(asked.attrs.axis)]),
    "repeat": _repeat,
    "tile": lambda asked: torch.tile(asked.args[0], asked.integers("repeats")),
    "tril": lambda asked: torch.tril(asked.args[0], asked.args[1]),
    "triu": lambda asked: torch.triu(asked.args[0], asked.args[1]),
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "collapse_sum_to": _collapse,
    "collapse_sum_like": _collapse,
    "shape_of": _shape_of,
    "shape_to_tensor": _shape_to_tensor,
    "tensor_to_shape": _tensor_to_shape,
    "size": _size,
    "memory.view": _view,
    "dynamic_strided_slice": _dynamic_strided_slice,
    "layout_transform": _layout_transform,
    "grad.no_grad": lambda asked: asked.args[0].detach(),
    "nn.dropout": lambda asked: (asked.args[0], torch.ones_like(asked.args[0])),  # TVM's own, of inference
    **dict.fromkeys(
        (
            *("hint_on_device", "to_vdevice", "memory.ensure_zero_offset", "builtin.stop_lift_params"),
            *("grad.start_checkpoint", "grad.end_checkpoint"),
        ),
        _same,
    ),
}
