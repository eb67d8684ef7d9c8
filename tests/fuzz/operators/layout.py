"""Operators that move elements and compute nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.registry import dtype_of, integers, operator
from tests.fuzz.values import Tensor, linear, moved


def _moves(*names: str) -> Any:
    return operator(*(f"relax.{name}" for name in names), units=None)


@_moves("broadcast_to")
def _broadcast_to(call: relax.Call, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return moved(lambda a: np.broadcast_to(a, shape), x)


@_moves("reshape", "flatten", "nn.batch_flatten", "squeeze", "expand_dims")
def _reshape(call: relax.Call, x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    name = call.op.name
    if name == "relax.flatten":
        shape = (-1,) if x.value.size else (0,)
    elif name == "relax.nn.batch_flatten":
        shape = (x.shape[0], int(np.prod(x.shape[1:])))
    elif name == "relax.squeeze":
        axes = range(x.value.ndim) if call.attrs.axis is None else integers(call.attrs.axis)
        dropped = {axis % x.value.ndim for axis in axes if x.shape[axis] == 1}
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in dropped)
    elif name == "relax.expand_dims":
        return moved(lambda a: np.expand_dims(a, integers(call.attrs.axis)), x)
    assert shape is not None
    return moved(lambda a: a.reshape(shape), x)


@_moves("concat")
def _concat(call: relax.Call, parts: tuple[Tensor, ...]) -> Tensor:
    axis = call.attrs.axis
    if axis is None:
        return moved(lambda *a: np.concatenate([x.ravel() for x in a]), *parts)
    return moved(lambda *a: np.concatenate(a, int(axis)), *parts)


@_moves("stack")
def _stack(call: relax.Call, parts: tuple[Tensor, ...]) -> Tensor:
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    return moved(lambda *a: np.stack(a, axis), *parts)


@_moves("meshgrid")
def _meshgrid(call: relax.Call, parts: tuple[Tensor, ...]) -> Any:
    indexing = str(call.attrs.indexing or "ij")
    values = np.meshgrid(*[x.value for x in parts], indexing=indexing)  # type: ignore[call-overload]
    errors = np.meshgrid(*[x.error for x in parts], indexing=indexing)  # type: ignore[call-overload]
    return tuple(Tensor.of(v, e, x.dtype) for v, e, x in zip(values, errors, parts, strict=True))


@_moves("split")
def _split(call: relax.Call, x: Tensor) -> Any:
    axis, at = int(call.attrs.axis) % x.value.ndim, call.attrs.indices_or_sections
    if hasattr(at, "__len__"):
        indices = integers(at)
    else:
        part = -(-x.shape[axis] // int(getattr(at, "value", at)))
        indices = tuple(part * i for i in range(1, int(getattr(at, "value", at))))
    values, errors = np.split(x.value, indices, axis), np.split(x.error, indices, axis)
    return tuple(Tensor.of(v, e, x.dtype) for v, e in zip(values, errors, strict=True))


@_moves("permute_dims")
def _permute_dims(call: relax.Call, x: Tensor) -> Tensor:
    axes = None if call.attrs.axes is None else integers(call.attrs.axes)
    return moved(lambda a: np.transpose(a, axes), x)


@_moves("flip")
def _flip(call: relax.Call, x: Tensor) -> Tensor:
    return moved(lambda a: np.flip(a, int(call.attrs.axis)), x)


@_moves("repeat")
def _repeat(call: relax.Call, x: Tensor) -> Tensor:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return moved(lambda a: np.repeat(a, int(call.attrs.repeats), axis), x)


@_moves("tile")
def _tile(call: relax.Call, x: Tensor) -> Tensor:
    return moved(lambda a: np.tile(a, integers(call.attrs.repeats)), x)


@_moves("tril", "triu")
def _triangle(call: relax.Call, x: Tensor, k: int) -> Tensor:
    cut = np.tril if call.op.name == "relax.tril" else np.triu
    return moved(lambda a: cut(a, k), x)


@_moves("reverse_sequence")
def _reverse_sequence(call: relax.Call, x: Tensor, lengths: Tensor) -> Tensor:
    axis, batch = int(call.attrs.seq_axis), int(call.attrs.batch_axis)

    def reverse(a: np.ndarray) -> np.ndarray:
        result = a.copy()
        source, target = np.moveaxis(a, (batch, axis), (0, 1)), np.moveaxis(result, (batch, axis), (0, 1))
        for row, length in enumerate(lengths.value):
            count = max(int(length), 0)
            target[row, :count] = source[row, :count][::-1]
        return result

    return moved(reverse, x)


@_moves("nn.pixel_shuffle")
def _pixel_shuffle(call: relax.Call, x: Tensor) -> Tensor:
    r = int(call.attrs.upscale_factor)

    def shuffle(a: np.ndarray) -> np.ndarray:
        *batch, c, h, w = a.shape
        n = len(batch)
        a = a.reshape(*batch, c // (r * r), r, r, h, w)
        a = np.transpose(a, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
        return a.reshape(*batch, c // (r * r), h * r, w * r)

    return moved(shuffle, x)


@_moves("nn.pad")
def _pad(call: relax.Call, x: Tensor) -> Tensor:
    widths = np.reshape(integers(call.attrs.pad_width), (-1, 2))
    mode = str(call.attrs.pad_mode)
    if mode == "constant":
        value = np.pad(x.value, widths, constant_values=float(call.attrs.pad_value))
        return Tensor.of(value, np.pad(x.error, widths), x.dtype)
    names: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return moved(lambda a: np.pad(a, widths, mode=names[mode]), x)


@_moves("layout_transform")
def _layout_transform(call: relax.Call, x: Tensor) -> Tensor:
    mapping = call.attrs.index_map
    shape = integers(mapping.map_shape(list(x.shape)))

    def transform(a: np.ndarray) -> np.ndarray:
        result = np.zeros(shape, a.dtype)
        for index in np.ndindex(*a.shape):
            result[integers(mapping.map_indices(list(index)))] = a[index]
        return result

    return moved(transform, x)


def strided(x: Tensor, axes: Any, begin: Any, end: Any, strides: Any) -> Tensor:
    """A slice, with begin and end counted from the end where they are negative, and cut to the extents."""
    index = [slice(None)] * x.value.ndim
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        size = x.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = (min(max(i + size if i < 0 else i, low), high) for i in (first, last))
        index[axis] = slice(first, last if last >= 0 else None, step)
    return moved(lambda a: a[tuple(index)], x)


@_moves("strided_slice")
def _strided_slice(call: relax.Call, x: Tensor, axes: Any, begin: Any, end: Any, strides: Any = None) -> Tensor:
    return strided(x, axes, begin, end, strides or (1,) * len(axes))


@_moves("dynamic_strided_slice")
def _dynamic_strided_slice(call: relax.Call, x: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> Tensor:
    numbers = (t.value.tolist() for t in (begin, end, strides))
    return strided(x, range(x.value.ndim), *numbers)


@operator("relax.collapse_sum_to", "relax.collapse_sum_like")
def _collapse_sum(call: relax.Call, x: Tensor, target: Any) -> Tensor:
    shape = target.shape if isinstance(target, Tensor) else target

    def collapse(a: np.ndarray) -> np.ndarray:
        a = a.sum(tuple(range(a.ndim - len(shape)))) if a.ndim > len(shape) else a
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and a.shape[axis] != 1)
        return np.asarray(a.sum(axes, keepdims=True) if axes else a)

    return linear(collapse, x.value.size, x)


@_moves("shape_of", "shape_to_tensor", "tensor_to_shape", "size")
def _shape(call: relax.Call, x: Any) -> Any:
    name = call.op.name
    if name == "relax.shape_of":
        return tuple(x.shape)
    if name == "relax.tensor_to_shape":
        return integers(x.value)
    return Tensor.exact(np.array(x, np.int64) if name == "relax.shape_to_tensor" else x.value.size, dtype_of(call))


@_moves("hint_on_device", "to_vdevice", "memory.ensure_zero_offset", "builtin.stop_lift_params")
def _same(call: relax.Call, x: Any, *_: Any) -> Any:
    return x


@_moves("grad.no_grad", "grad.start_checkpoint", "grad.end_checkpoint")
def _marked(call: relax.Call, x: Any) -> Any:
    return x
