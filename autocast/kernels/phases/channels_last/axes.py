"""Where axes are, and what attributes say of them, once axis 1 has moved to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from autocast.ir import dims

#: The layouts that are moved, and what they are called then.
LAYOUTS = {"NCW": "NWC", "NCHW": "NHWC"}


def order(rank: int) -> list[int]:
    """The permutation that moves axis 1 to the end."""
    return [0, *range(2, rank), 1]


def place(axis: int, rank: int) -> int:
    """Where `axis` is once axis 1 has moved to the end."""
    return order(rank).index(axis % rank)


def with_channels_last(value: relax.Expr) -> relax.Call:
    """`value` with axis 1 at the end."""
    shape = dims(value)
    if is_one(shape[1]):
        return relax.op.reshape(value, relax.ShapeExpr([shape[axis] for axis in order(len(shape))]))
    return relax.op.permute_dims(value, order(len(shape)))


def moved_back(value: relax.Expr) -> relax.Expr:
    """`value`, or the fields of a tuple, with the last axis as axis 1 again."""
    if isinstance(value.ty, tvm.ir.TupleType):
        ranks = [len(ty.shape) for ty in value.ty.fields]
        fields = (relax.TupleGetItem(value, i) for i in range(len(ranks)))
        return relax.Tuple([relax.op.permute_dims(x, _back(rank)) for x, rank in zip(fields, ranks, strict=True)])
    return relax.op.permute_dims(value, _back(len(dims(value))))


def _back(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def is_one(dim: object) -> bool:
    """Whether a dimension is known to be 1."""
    return isinstance(dim, int) and dim == 1


def _moved_axes(axes: Any, rank: int) -> Any:
    if axes is None:
        return None
    return sorted(place(int(axis), rank) for axis in axes) if isinstance(axes, Sequence) else place(int(axes), rank)


def _moved_layout(layout: str, rank: int) -> str:
    return LAYOUTS.get(str(layout), str(layout))


def _moved_widths(widths: Any, rank: int) -> list[int]:
    return [int(widths[2 * axis + side]) for axis in order(rank) for side in (0, 1)]


#: Attributes that say where axes are, and how to say it of data whose channels are last.
_ATTRIBUTES: dict[str, Callable[[Any, int], Any]] = {
    "axes": _moved_axes,
    "axis": _moved_axes,
    "channel_axis": _moved_axes,
    "data_layout": _moved_layout,
    "layout": _moved_layout,
    "out_layout": _moved_layout,
    "pad_width": _moved_widths,
}


def moved_attributes(call: relax.Call, rank: int) -> tvm.ir.Attrs:
    """The attributes that say of moved data, in `rank` dimensions, what those of `call` say of its data."""
    names = [field.name for field in type(call.attrs).__tvm_ffi_type_info__.fields]
    values = {name: getattr(call.attrs, name) for name in names}
    moved = {name: move(values[name], rank) for name, move in _ATTRIBUTES.items() if name in values}
    return type(call.attrs)(**{**values, **moved})
