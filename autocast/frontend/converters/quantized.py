"""Converters of what quantizers of torch (PT2E) write: numbers of 8 and 16 bits with a scale and a zero."""

from __future__ import annotations

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op

_INTEGERS = ("int8", "uint8", "int16")


def _per_channel(node: fx.Node) -> bool:
    return "per_channel" in str(node.target)


def _axis(node: fx.Node, rank: int) -> int:
    """The axis along which each has a scale; for all elements it does not matter."""
    return int(node.args[3]) % rank if _per_channel(node) else 0


def _parameter(importer: Importer, value: object, dtype: str) -> relax.Expr:
    """A scale or a zero: a number, or a tensor without axes or with one."""
    if not isinstance(value, relax.Expr):
        return relax.const(value, dtype)
    return cast(importer, value, dtype)


def _is_real(zero: object) -> bool:
    """Whether zeros lie between integers, as those of embeddings may."""
    return isinstance(zero, relax.Expr) and "float" in str(dtype_of(zero))


def _along(importer: Importer, value: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """What each place along an axis has one of, in float32, to be broadcast with all elements."""
    value = cast(importer, value, "float32")
    if not dims(value):
        return value
    return importer.emit(op.reshape(value, [dims(value)[0] if at == axis else 1 for at in range(rank)]))


def _quantize(importer: Importer, node: fx.Node) -> relax.Expr:
    """As torch does: by the reciprocal of the scale, which is another number than the quotient by it."""
    names = ("input", "scale", "zero_point", *["axis"] * _per_channel(node), "quant_min", "quant_max", "dtype")
    arguments = {name: importer.arg(node, at, name) for at, name in enumerate(names)}
    x, scale, low, high = (arguments[name] for name in ("input", "scale", "quant_min", "quant_max"))
    dtype = str(arguments["dtype"]).removeprefix("torch.")
    if dtype not in _INTEGERS:
        raise ImportModelError(f"quantization to {dtype}; expected one of {', '.join(_INTEGERS)}")
    if isinstance(low, relax.Expr) or isinstance(high, relax.Expr):
        raise ImportModelError("bounds of integers that are tensors")
    rank = len(dims(x))
    axis = _axis(node, rank)
    if isinstance(scale, relax.Expr):
        inverse = importer.emit(op.divide(relax.const(1.0, "float32"), cast(importer, scale, "float32")))
        inverse = _along(importer, inverse, axis, rank)
    else:
        inverse = relax.const(1.0 / scale, "float32")
    steps = importer.emit(op.multiply(cast(importer, x, "float32"), inverse))
    zero = arguments["zero_point"]
    if _is_real(zero):
        steps = importer.emit(op.add(importer.emit(op.round(steps)), _along(importer, zero, axis, rank)))
        return cast(importer, importer.emit(op.clip(steps, low, high)), dtype)
    zeros = _parameter(importer, zero, dtype)
    ones = relax.const(np.ones(dims(zeros), "float32"))
    integers = importer.emit(op.quantize(steps, ones, zeros, axis, dtype))
    bounds = np.iinfo(dtype)
    if (low, high) == (bounds.min, bounds.max):
        return integers
    return importer.emit(op.clip(integers, max(low, int(bounds.min)), min(high, int(bounds.max))))


def _dequantize(importer: Importer, node: fx.Node) -> relax.Expr:
    x, scale, zero = (importer.arg(node, at, name) for at, name in enumerate(("input", "scale", "zero_point")))
    rank = len(dims(x))
    axis = _axis(node, rank)
    if _is_real(zero):
        steps = importer.emit(op.subtract(cast(importer, x, "float32"), _along(importer, zero, axis, rank)))
        real = op.multiply(steps, _along(importer, _parameter(importer, scale, "float32"), axis, rank))
        return cast(importer, importer.emit(real), importer.dtype(node))
    zeros = relax.const(0, "int32") if zero is None else _parameter(importer, zero, str(dtype_of(x)))
    real = op.dequantize(x, _parameter(importer, scale, "float32"), zeros, axis, "float32")
    return cast(importer, importer.emit(real), importer.dtype(node))


def _integer_product(importer: Importer, node: fx.Node) -> relax.Expr:
    """Sums of int32 of products of int8."""
    a, b = (importer.arg(node, at, name) for at, name in enumerate(("self", "mat2")))
    return importer.emit(op.matmul(a, b, out_dtype="int32"))


QUANTIZED: dict[str, Converter] = {
    "_int_mm.default": _integer_product,
    **{
        f"quantized_decomposed::{verb}_{kind}": converter
        for verb, converter in (("quantize", _quantize), ("dequantize", _dequantize))
        for kind in ("per_tensor.default", "per_tensor.tensor", "per_tensor.tensor2", "per_channel.default")
    },
}
