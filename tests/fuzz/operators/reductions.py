"""Reductions and scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.indexing import ranked
from tests.fuzz.operators.registry import dtype_of, integers, operator
from tests.fuzz.values import ROUNDING, Tensor, elementwise, linear


def axes_of(call: relax.Call, x: Tensor) -> tuple[int, ...]:
    """The axes that a reduction is over."""
    axes = call.attrs.axis
    return tuple(range(x.value.ndim)) if axes is None else tuple(axis % x.value.ndim for axis in integers(axes))


def total(x: Tensor, axes: tuple[int, ...], keep: bool = True) -> Tensor:
    """The sum of float32 terms."""
    terms = int(np.prod([x.shape[axis] for axis in axes]))
    return linear(lambda a: a.sum(axes, keepdims=keep, dtype=None if a.dtype != np.bool_ else np.int64), terms, x)


def scaled(x: Tensor, factor: float) -> Tensor:
    """A product with a positive number, rounded once."""
    return Tensor.of(x.value * factor, x.error * factor, x.dtype).rounded(None)


def mean(x: Tensor, axes: tuple[int, ...], keep: bool = True) -> Tensor:
    """The average of float32 terms."""
    count = int(np.prod([x.shape[axis] for axis in axes]))
    with np.errstate(all="ignore"):
        return scaled(total(x, axes, keep), float(np.divide(1.0, count)))


def variance(x: Tensor, axes: tuple[int, ...], keep: bool = True) -> Tensor:
    """The average of squared differences from the average."""
    centred = elementwise(np.subtract, x, mean(x, axes)).rounded(None)
    return mean(elementwise(np.square, centred).rounded(None), axes, keep)


def wide(x: Tensor) -> Tensor:
    """The same values, as they are computed with."""
    return Tensor(x.value, x.error, "float64" if x.dtype == "float64" else "float32")


def stored(x: Tensor, dtype: str) -> Tensor:
    """The same values, as they are stored."""
    return Tensor(x.value, x.error, dtype)


@operator("relax.sum")
def _sum(call: relax.Call, x: Tensor) -> Tensor:
    keep, axes = bool(call.attrs.keepdims), axes_of(call, x)
    if not x.is_float:
        unsure = np.minimum(x.error, 2.0**40).sum(axes, keepdims=keep)
        return Tensor.of(x.value.astype(np.int64).sum(axes, keepdims=keep), unsure, dtype_of(call))
    return stored(total(wide(x), axes, keep), dtype_of(call))


@operator("relax.mean", "relax.variance", "relax.std", units=2)
def _mean(call: relax.Call, x: Tensor) -> Tensor:
    keep, axes = bool(call.attrs.keepdims), axes_of(call, x)
    if call.op.name == "relax.mean":
        return stored(mean(wide(x), axes, keep), dtype_of(call))
    result = variance(wide(x), axes, keep)
    if call.op.name == "relax.std":
        result = elementwise(lambda a: np.sqrt(np.maximum(a, 0)), result).rounded(None)
    return stored(result, dtype_of(call))


@operator("relax.max", "relax.min", units=None)
def _extreme(call: relax.Call, x: Tensor) -> Tensor:
    keep, axes = bool(call.attrs.keepdims), axes_of(call, x)
    reduce: Any = np.max if call.op.name == "relax.max" else np.min
    return Tensor.of(reduce(x.value, axes, keepdims=keep), x.error.max(axes, keepdims=keep, initial=0), x.dtype)


def product(x: Tensor, value: np.ndarray, sizes: np.ndarray, widened: np.ndarray, count: int, dtype: str) -> Tensor:
    """A product of factors, given with the products of their sizes, exact and at their largest."""
    inner = ROUNDING["float64" if dtype == "float64" else "float32"] if x.is_float else 0.0
    unsure = widened - sizes if x.is_float or x.error.any() else 0.0
    return Tensor.of(value, unsure + count * inner * np.abs(widened), dtype)


@operator("relax.prod")
def _prod(call: relax.Call, x: Tensor) -> Tensor:
    keep, axes = bool(call.attrs.keepdims), axes_of(call, x)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    size = np.abs(x.value.astype(np.float64))
    return product(
        x,
        x.value.prod(axes, keepdims=keep),
        size.prod(axes, keepdims=keep),
        (size + x.error).prod(axes, keepdims=keep),
        count,
        dtype_of(call),
    )


@operator("relax.cumsum", "relax.cumprod")
def _scan(call: relax.Call, x: Tensor) -> Tensor:
    flat = call.attrs.axis is None
    axis = 0 if flat else int(call.attrs.axis) % x.value.ndim
    if flat:
        x = Tensor(x.value.ravel(), x.error.ravel(), x.dtype)
    count, dtype, exclusive = x.shape[axis], dtype_of(call), bool(call.attrs.exclusive)
    start = 0 if call.op.name == "relax.cumsum" else 1
    scan = np.cumsum if start == 0 else np.cumprod

    def scanned(a: np.ndarray) -> np.ndarray:
        a = a.astype(np.int64) if a.dtype == np.bool_ else a
        result = scan(a, axis)
        if exclusive and count:
            first = np.full_like(np.take(result, [0], axis), start)
            result = np.concatenate([first, np.take(result, range(count - 1), axis)], axis)
        return result

    if start == 0:
        return stored(
            linear(scanned, count, wide(x) if x.is_float else x, dtype="float32" if x.is_float else dtype), dtype
        )
    size = np.abs(x.value.astype(np.float64))
    return product(x, scanned(x.value), scanned(size), scanned(size + x.error), count, dtype)


@operator("relax.median", units=None)
def _median(call: relax.Call, x: Tensor) -> Any:
    keep = bool(call.attrs.keepdims)
    if call.attrs.axis is None or len(call.attrs.axis) == 0:
        flat = Tensor(x.value.ravel(), x.error.ravel(), x.dtype)
        values, _, _ = ranked(flat, 0, False)
        middle = (x.value.size - 1) // 2
        shape = (1,) * x.value.ndim if keep else ()
        return Tensor.of(values.value[middle].reshape(shape), values.error[middle].reshape(shape), x.dtype)
    axis = int(call.attrs.axis[0]) % x.value.ndim
    values, order, sure = ranked(x, axis, False)
    at = [(x.shape[axis] - 1) // 2]

    def cut(a: np.ndarray) -> np.ndarray:
        result = np.take(a, at, axis)
        return result if keep else result.squeeze(axis)

    return (
        Tensor.of(cut(values.value), cut(values.error), x.dtype),
        Tensor.of(cut(order), np.where(cut(sure), 0.0, np.inf), "int64"),
    )
