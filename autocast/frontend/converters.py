"""Converters from torch operators to Relax: our own, and the list of TVM's that the tests hold to torch's results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx

from autocast.errors import ImportModelError
from autocast.frontend.arithmetic import ARITHMETIC
from autocast.frontend.attention import attention
from autocast.ir import dtype_of, is_tensor, shape_of

if TYPE_CHECKING:
    from autocast.frontend.importer import Importer

Converter = Callable[["Importer", fx.Node], Any]


def _linear(importer: Importer, node: fx.Node) -> relax.Expr:
    """`matmul(x, permute_dims(weight)) + bias`, x as it is: no flattening, no broadcast weight, no out_dtype."""
    x, weight, bias = (importer.arg(node, i, name) for i, name in enumerate(("input", "weight", "bias")))
    weight = importer.emit(relax.op.permute_dims(weight)) if len(shape_of(weight)) == 2 else weight
    result = importer.emit(relax.op.matmul(x, weight))
    return result if bias is None else importer.emit(relax.op.add(result, bias))


def _matmul(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.matmul(importer.arg(node, 0, "self"), importer.arg(node, 1, "other")))


def _addmm(importer: Importer, node: fx.Node) -> relax.Expr:
    """`alpha * (a @ b) + beta * x`, also batched."""
    x, a, b = (importer.arg(node, i, "") for i in range(3))
    result = _scaled(importer, importer.emit(relax.op.matmul(a, b)), node.kwargs.get("alpha", 1))
    beta = node.kwargs.get("beta", 1)
    return result if beta == 0 else importer.emit(relax.op.add(result, _scaled(importer, x, beta)))


def _scaled(importer: Importer, x: relax.Expr, factor: float) -> relax.Expr:
    return x if factor == 1 else importer.emit(relax.op.multiply(x, relax.const(factor, dtype_of(x))))


#: (rank of the input, transposed) -> operator, layout of the data, layout of the weight.
_CONVOLUTIONS: dict[tuple[int, bool], tuple[Callable[..., relax.Expr], str, str]] = {
    (3, False): (relax.op.nn.conv1d, "NCW", "OIW"),
    (4, False): (relax.op.nn.conv2d, "NCHW", "OIHW"),
    (5, False): (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
    (3, True): (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    (4, True): (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
}


def _convolution(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, bias = (importer.arg(node, i, "") for i in range(3))
    stride, padding, dilation, transposed, output_padding, groups = node.args[3:9]
    rank = len(shape_of(x))
    if (rank, bool(transposed)) not in _CONVOLUTIONS:
        raise ImportModelError(f"{'transposed ' if transposed else ''}convolution of an input of rank {rank}")
    convolve, data_layout, kernel_layout = _CONVOLUTIONS[rank, bool(transposed)]

    def sizes(value: Any) -> list[int]:
        return [int(v) for v in (value if len(value) > 1 else list(value) * (rank - 2))]

    extra = {"output_padding": sizes(output_padding)} if transposed else {}
    result = importer.emit(
        convolve(
            x,
            weight,
            strides=sizes(stride),
            padding=sizes(padding),
            dilation=sizes(dilation),
            groups=int(groups),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            **extra,
        )
    )
    if bias is None:
        return result
    bias = importer.emit(relax.op.reshape(bias, [1, shape_of(bias)[0]] + [1] * (rank - 2)))
    return importer.emit(relax.op.add(result, bias))


def _embedding(importer: Importer, node: fx.Node) -> relax.Expr:
    """Torch refuses indices that are out of bounds; "clip" at least never reads there."""
    weight, indices = importer.arg(node, 0, "weight"), importer.arg(node, 1, "indices")
    return importer.emit(relax.op.take(weight, indices, axis=0, mode="clip"))


def _index_select(importer: Importer, node: fx.Node) -> relax.Expr:
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    return importer.emit(relax.op.take(x, index, axis=_axis(x, node.args[1]), mode="clip"))


def _index(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[i, j]`; negative indices count from the end, so one index alone wraps around."""
    x, indices = importer.arg(node, 0, "self"), importer.arg(node, 1, "indices")
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index) in ("bool", "uint8") for _, index in given):
        raise ImportModelError("indexing with a boolean mask, whose result has a shape known only at run time")
    if len(given) == 1:
        return importer.emit(relax.op.take(x, given[0][1], axis=given[0][0], mode="wrap"))
    axes = [axis for axis, _ in given]
    if axes != list(range(len(axes))):
        raise ImportModelError(f"indices on the axes {axes}; expected one axis, or the first ones")
    rows = [_from_start(importer, index, shape_of(x)[axis]) for axis, index in given]
    return importer.emit(relax.op.index_tensor(x, rows))


def _from_start(importer: Importer, index: relax.Expr, size: Any) -> relax.Expr:
    """The index with negative entries counted from the start."""
    if not isinstance(size, int):
        return index  # torch.export knows no negative index into a symbolic dimension
    dtype = dtype_of(index)
    wrapped = importer.emit(relax.op.add(index, relax.const(size, dtype)))
    negative = importer.emit(relax.op.less(index, relax.const(0, dtype)))
    return importer.emit(relax.op.where(negative, wrapped, index))


def _select(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.select(axis, index)`: a slice of one and a squeeze, never a `take` out of bounds."""
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    axis = _axis(x, node.args[1])
    begin = shape_of(x)[axis] + index if isinstance(index, int) and index < 0 else index
    part = importer.emit(relax.op.strided_slice(x, [axis], [begin], [begin + 1], assume_inbound=True))
    return importer.emit(relax.op.squeeze(part, [axis]))


def _slice(importer: Importer, node: fx.Node) -> relax.Expr:
    x, start, end = (importer.arg(node, i, name) for i, name in ((0, "self"), (2, "start"), (3, "end")))
    step = importer.arg(node, 4, "step", 1)
    axis = _axis(x, node.args[1] if len(node.args) > 1 else 0)
    size = shape_of(x)[axis]
    start, end = _bound(start, size, 0), _bound(end, size, size)
    if isinstance(start, int) and start == 0 and step == 1 and _same(end, size):
        return x
    return importer.emit(relax.op.strided_slice(x, [axis], [start], [end], [step], assume_inbound=True))


def _bound(value: Any, size: Any, default: Any) -> Any:
    """A slice's bound counted from the start and clipped to the dimension, as Python does."""
    if value is None or (isinstance(value, int) and value >= sys.maxsize):
        return default
    if isinstance(value, int) and isinstance(size, int):
        return min(max(value + size if value < 0 else value, 0), size)
    return size + value if isinstance(value, int) and value < 0 else value


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b) or str(a) == str(b)


def _axis(x: relax.Expr, axis: int) -> int:
    return int(axis) % len(shape_of(x))


def _cumsum(importer: Importer, node: fx.Node) -> relax.Expr:
    """Sums of booleans and small integers count in int64, as in torch."""
    x, axis = importer.arg(node, 0, "self"), _axis(importer.arg(node, 0, "self"), node.args[1])
    return importer.emit(relax.op.cumsum(_cast(importer, x, importer.dtype(node)), axis))


def _cast(importer: Importer, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if dtype_of(x) == dtype else importer.emit(relax.op.astype(x, dtype))


def _to_dtype(importer: Importer, node: fx.Node) -> relax.Expr:
    return _cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))


def _same_value(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.arg(node, 0, "self")


def _reshape(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.reshape(importer.arg(node, 0, "self"), importer.shape(node)))


def _expand(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.broadcast_to(importer.arg(node, 0, "self"), importer.shape(node)))


def _squeeze(importer: Importer, node: fx.Node) -> relax.Expr:
    """Torch leaves axes alone whose size is not 1."""
    x, axes = importer.arg(node, 0, "self"), node.args[1]
    shape = shape_of(x)
    named = [_axis(x, a) for a in (axes if isinstance(axes, list | tuple) else [axes])]
    ones = [a for a in named if isinstance(shape[a], int) and shape[a] == 1]
    return importer.emit(relax.op.squeeze(x, ones)) if ones else x


def _cat(importer: Importer, node: fx.Node) -> relax.Expr:
    """Inputs of one common dtype; torch ignores empty ones of rank 1."""
    parts = [x for x in importer.arg(node, 0, "tensors") if shape_of(x) != (0,) or len(importer.shape(node)) == 1]
    parts = [_cast(importer, x, importer.dtype(node)) for x in parts]
    axis = importer.arg(node, 1, "dim", 0) % len(importer.shape(node))
    return parts[0] if len(parts) == 1 else importer.emit(relax.op.concat(parts, axis=axis))


def _where(importer: Importer, node: fx.Node) -> relax.Expr:
    condition, x, y = (importer.arg(node, i, "") for i in range(3))
    x, y = (_cast(importer, value, importer.dtype(node)) for value in (x, y))
    return importer.emit(relax.op.where(condition, x, y))


def _softmax(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(operator(_cast(importer, x, importer.dtype(node)), _axis(x, node.args[1])))


def _full(importer: Importer, node: fx.Node) -> relax.Expr:
    """Every `full` and `full_like`; the value is a number or a size."""
    value, dtype = importer.arg(node, 1, "fill_value"), importer.dtype(node)
    if not isinstance(value, bool | int | float):
        raise ImportModelError("a fill value that is known only at run time")
    return importer.emit(relax.op.full(importer.shape(node), relax.const(value, dtype), dtype))


def _empty(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.zeros(importer.shape(node), importer.dtype(node)))


def _layer_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, bias = (importer.arg(node, i, name) for i, name in ((0, "input"), (2, "weight"), (3, "bias")))
    shape = [int(size) for size in node.args[1]]  # type: ignore[union-attr]
    weight, bias = _affine(weight, shape, dtype_of(x), 1.0), _affine(bias, shape, dtype_of(x), 0.0)
    axes = list(range(-len(shape), 0))
    return importer.emit(relax.op.nn.layer_norm(x, weight, bias, axes=axes, epsilon=importer.arg(node, 4, "eps", 1e-5)))


def _group_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, bias = (importer.arg(node, i, name) for i, name in ((0, "input"), (2, "weight"), (3, "bias")))
    shape = [shape_of(x)[1]]
    weight, bias = _affine(weight, shape, dtype_of(x), 1.0), _affine(bias, shape, dtype_of(x), 0.0)
    return importer.emit(
        relax.op.nn.group_norm(
            x,
            weight,
            bias,
            num_groups=int(node.args[1]),  # type: ignore[arg-type]
            channel_axis=1,
            axes=list(range(2, len(shape_of(x)))),
            epsilon=importer.arg(node, 4, "eps", 1e-5),
        )
    )


def _batch_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    """BatchNorm with fixed statistics; the first of torch's three results is the only one that means anything."""
    x, weight, bias, mean, variance = (importer.arg(node, i, "") for i in range(5))
    shape = [shape_of(x)[1]]
    weight, bias = _affine(weight, shape, dtype_of(x), 1.0), _affine(bias, shape, dtype_of(x), 0.0)
    result = importer.emit(
        relax.op.nn.batch_norm(x, weight, bias, mean, variance, axis=1, epsilon=float(node.args[6]), training=False)  # type: ignore[arg-type]
    )
    return [importer.emit(relax.TupleGetItem(result, 0))]


def _affine(value: relax.Expr | None, shape: list[int], dtype: str | None, default: float) -> relax.Expr:
    return relax.const(np.full(shape, default), dtype) if value is None else value


def _average_pool(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    kernel, stride, padding = (list(importer.arg(node, i, "") or []) for i in (1, 2, 3))
    if importer.arg(node, 6, "divisor_override") is not None:
        raise ImportModelError("divisor_override")
    return importer.emit(
        relax.op.nn.avg_pool2d(
            x,
            pool_size=kernel,
            strides=stride or kernel,
            padding=padding or [0, 0],
            ceil_mode=bool(importer.arg(node, 4, "ceil_mode", False)),
            count_include_pad=bool(importer.arg(node, 5, "count_include_pad", True)),
        )
    )


def _max_pool(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The values; reading the indices, which Relax does not give, fails in getitem."""
    x = importer.arg(node, 0, "self")
    kernel, stride = list(importer.arg(node, 1, "kernel_size")), list(importer.arg(node, 2, "stride") or [])
    padding, dilation = (list(importer.arg(node, i, "", [d, d])) for i, d in ((3, 0), (4, 1)))
    ceil_mode = bool(importer.arg(node, 5, "ceil_mode", False))
    pooled = relax.op.nn.max_pool2d(x, kernel, stride or kernel, padding, dilation, ceil_mode)
    return [importer.emit(pooled)]


def _get_item(importer: Importer, node: fx.Node) -> relax.Expr:
    values, index = importer.arg(node, 0, ""), node.args[1]
    if isinstance(values, list | tuple):
        if not isinstance(index, int) or index >= len(values):
            raise ImportModelError(f"result {index} of an operator of which only the first {len(values)} are supported")
        return values[index]
    return importer.emit(relax.TupleGetItem(values, index))


def _sym_size(importer: Importer, node: fx.Node) -> tirx.PrimExpr:
    return importer.dim(node.meta["val"])


def _resize(importer: Importer, node: fx.Node, method: str) -> relax.Expr:
    """`interpolate` with torch's coordinates: asymmetric and rounded down for nearest, a = -0.75 for bicubic."""
    x, size = importer.arg(node, 0, "input"), importer.shape(node)[2:]
    align = method != "nearest_neighbor" and bool(importer.arg(node, 2, "align_corners", False))
    half = "asymmetric" if method == "nearest_neighbor" else "half_pixel"
    resized = relax.op.image.resize2d(
        x,
        relax.ShapeExpr(size),
        layout="NCHW",
        method=method,
        coordinate_transformation_mode="align_corners" if align else half,
        rounding_method="floor" if method == "nearest_neighbor" else "",
        cubic_alpha=-0.75,
    )
    return importer.emit(resized)


def _rms_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, epsilon = (importer.arg(node, i, name) for i, name in ((0, "input"), (2, "weight"), (3, "eps")))
    shape = [int(size) for size in node.args[1]]  # type: ignore[union-attr]
    epsilon = torch.finfo(node.meta["val"].dtype).eps if epsilon is None else epsilon
    weight = _affine(weight, shape, dtype_of(x), 1.0)
    return importer.emit(relax.op.nn.rms_norm(x, weight, axes=list(range(-len(shape), 0)), epsilon=epsilon))


def _unsqueeze(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    assert is_tensor(x)
    return importer.emit(relax.op.expand_dims(x, node.args[1]))


#: Our converters, by the name of the overload.
CONVERTERS: dict[str, Converter] = {
    **ARITHMETIC,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "_softmax.default": partial(_softmax, operator=relax.op.nn.softmax),
    "_log_softmax.default": partial(_softmax, operator=relax.op.nn.log_softmax),
    "_to_copy.default": _to_dtype,
    "addmm.default": _addmm,
    "alias.default": _same_value,
    "avg_pool2d.default": _average_pool,
    "baddbmm.default": _addmm,
    "bmm.default": _matmul,
    "cat.default": _cat,
    "clone.default": _same_value,
    "convolution.default": _convolution,
    "cumsum.default": _cumsum,
    "detach.default": _same_value,
    "embedding.default": _embedding,
    "empty.memory_format": _empty,
    "expand.default": _expand,
    "full.default": _full,
    "full_like.default": _full,
    "getitem": _get_item,
    "group_norm.default": _group_norm,
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "layer_norm.default": _layer_norm,
    "linear.default": _linear,
    "log_softmax.int": partial(_softmax, operator=relax.op.nn.log_softmax),
    "matmul.default": _matmul,
    "max_pool2d_with_indices.default": _max_pool,
    "mm.default": _matmul,
    "reshape.default": _reshape,
    "rms_norm.default": _rms_norm,
    "scaled_dot_product_attention.default": attention,
    "select.int": _select,
    "slice.Tensor": _slice,
    "softmax.int": partial(_softmax, operator=relax.op.nn.softmax),
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "sym_size.int": _sym_size,
    "unsqueeze.default": _unsqueeze,
    "upsample_bicubic2d.vec": partial(_resize, method="cubic"),
    "upsample_bilinear2d.vec": partial(_resize, method="linear"),
    "upsample_nearest2d.vec": partial(_resize, method="nearest_neighbor"),
    "view.default": _reshape,
    "where.self": _where,
}

#: TVM's converters whose results tests/frontend/test_operators.py compares with torch's.
TRUSTED = frozenset(
    f"{name}.{overload}"
    for overload, names in {
        "default": "abs acos acosh arange argmax argmin asin asinh atan atanh ceil clamp constant_pad_nd cos cosh erf exp "
        "expm1 flip floor gelu hardtanh isfinite isinf isnan leaky_relu log log10 log1p log2 max mean min neg permute "
        "prod reciprocal relu relu6 repeat round rsqrt scalar_tensor sigmoid sign silu sin sinh sqrt square stack sum tan "
        "tanh topk tril triu trunc gather adaptive_avg_pool1d adaptive_avg_pool2d argsort",
        "dim": "any max mean",
        "dims": "any",
        "dim_IntList": "sum",
        "correction": "var",
        "src": "scatter",
        "start_step": "arange",
    }.items()
    for name in names.split()
) | {"split_with_sizes.default", "sort.default", "pixel_shuffle.default", "scatter.value"}
