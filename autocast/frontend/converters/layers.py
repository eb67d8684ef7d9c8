"""Converters of products, convolutions, norms and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.frontend.nodes import results_read
from autocast.ir import dtype_of


def _linear(importer: Importer, node: fx.Node) -> relax.Expr:
    """`matmul(x, permute_dims(weight)) + bias`, x as it is: no flattening, no broadcast weight, no out_dtype."""
    x, weight, bias = (importer.arg(node, i, name) for i, name in enumerate(("input", "weight", "bias")))
    weight = importer.emit(relax.op.permute_dims(weight)) if len(dims(weight)) == 2 else weight
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


def _sum_of_products(importer: Importer, node: fx.Node) -> relax.Expr:
    """`addbmm`: `alpha * (a @ b).sum(0) + beta * x`."""
    x, a, b = (importer.arg(node, i, "") for i in range(3))
    total = importer.emit(relax.op.sum(importer.emit(relax.op.matmul(a, b)), 0))
    result, beta = _scaled(importer, total, node.kwargs.get("alpha", 1)), node.kwargs.get("beta", 1)
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
    (5, True): (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def _convolution(importer: Importer, node: fx.Node) -> relax.Expr:
    if isinstance(node.args[8], fx.Node):
        raise ImportModelError("a convolution whose number of groups is a size that varies")
    x, weight, bias = (importer.arg(node, i, "") for i in range(3))
    result = importer.emit(convolution(x, weight, *node.args[3:9]))
    if bias is None:
        return result
    bias = importer.emit(relax.op.reshape(bias, [1, dims(bias)[0]] + [1] * (len(dims(x)) - 2)))
    return importer.emit(relax.op.add(result, bias))


def convolution(
    x: relax.Expr,
    weight: relax.Expr,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> relax.Call:
    """A convolution as torch says it, without a bias; of any rank that Relax has."""
    rank = len(dims(x))
    if (rank, bool(transposed)) not in _CONVOLUTIONS:
        raise ImportModelError(f"{'transposed ' if transposed else ''}convolution of an input of rank {rank}")
    convolve, data_layout, kernel_layout = _CONVOLUTIONS[rank, bool(transposed)]

    def sizes(value: Sequence[int]) -> list[int]:
        return [int(v) for v in (value if len(value) > 1 else list(value) * (rank - 2))]

    extra = {"output_padding": sizes(output_padding)} if transposed else {}
    return convolve(
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


def _embedding(importer: Importer, node: fx.Node) -> relax.Expr:
    """A number without a row is refused where it is an input: see `autocast.runtime.rows`.

    A row for padding is read and not learned: no gradient passes where an index names it.
    """
    weight = importer.arg(node, 0, "weight")
    if importer.arg(node, 3, "scale_grad_by_freq", False):
        raise ImportModelError("gradients that are divided by how often an index occurs")
    constant = importer.smallest_constant(node.args[1])
    indices = importer.arg(node, 1, "indices") if constant is None else constant
    result = importer.emit(relax.op.take(weight, indices, axis=0, mode="clip"))
    padding = int(importer.arg(node, 2, "padding_idx", -1))
    if padding >= 0 and (constant is None or (constant.value.numpy() == padding).any()):
        padded = importer.emit(relax.op.equal(indices, relax.const(padding, dtype_of(indices))))
        fixed = importer.emit(relax.op.grad.no_grad(result))
        result = importer.emit(relax.op.where(relax.op.expand_dims(padded, -1), fixed, result))
    return result if constant is None else importer.emit(relax.op.broadcast_to(result, importer.shape(node)))


def _softmax(importer: Importer, node: fx.Node, operator: Callable[..., relax.Expr]) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(operator(cast(importer, x, importer.dtype(node)), axis_of(x, node.args[1])))


def _layer_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, bias = (importer.arg(node, i, name) for i, name in ((0, "input"), (2, "weight"), (3, "bias")))
    shape, epsilon = [int(size) for size in node.args[1]], importer.arg(node, 4, "eps", 1e-5)
    return _normalized(importer, x, weight, bias, shape, epsilon, importer.dtype(node))


def _normalized(
    importer: Importer,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    shape: list[int],
    epsilon: float,
    dtype: str,
) -> relax.Expr:
    weight, bias = _affine(weight, shape, dtype_of(x), 1.0), _affine(bias, shape, dtype_of(x), 0.0)
    x, weight, bias = _in_one_dtype(importer, x, weight, bias)
    axes = list(range(-len(shape), 0))
    return cast(importer, importer.emit(relax.op.nn.layer_norm(x, weight, bias, axes=axes, epsilon=epsilon)), dtype)


def _layer_norm_with_statistics(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    x, weight, bias = (importer.arg(node, i, "") for i in (0, 2, 3))
    shape, epsilon = [int(size) for size in node.args[1]], float(node.args[4])
    dtype = importer.type_of(node.meta["val"][0])[1]
    result = _normalized(importer, x, weight, bias, shape, epsilon, dtype)
    return [result, *_statistics(importer, node, x, list(range(-len(shape), 0)), epsilon)]


def _statistics(importer: Importer, node: fx.Node, x: relax.Expr, axes: list[int], epsilon: float) -> list[relax.Expr]:
    """The mean and the reciprocal deviation along axes that a norm goes by, if they are read."""
    if results_read(node) <= {0}:
        return []
    shape, dtype = importer.type_of(node.meta["val"][1])
    x = cast(importer, x, wide(dtype))
    variance = importer.emit(relax.op.variance(x, axes, True))
    deviation = relax.op.rsqrt(relax.op.add(variance, relax.const(epsilon, wide(dtype))))
    values = (importer.emit(relax.op.reshape(value, shape)) for value in (relax.op.mean(x, axes, True), deviation))
    return [cast(importer, value, dtype) for value in values]


def _group_norm(importer: Importer, node: fx.Node) -> relax.Expr:
    x, weight, bias = (importer.arg(node, i, name) for i, name in ((0, "input"), (2, "weight"), (3, "bias")))
    groups, epsilon = int(node.args[1]), importer.arg(node, 4, "eps", 1e-5)
    return _normalized_groups(importer, x, weight, bias, groups, epsilon, importer.dtype(node))


def _normalized_groups(
    importer: Importer,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    groups: int,
    epsilon: float,
    dtype: str,
) -> relax.Expr:
    """Relax has group_norm in float32 and float16 only: in bfloat16 it is computed in float32, as torch does inside.

    It also wants axes behind the channels.
    """
    flat = len(dims(x)) == 2
    x = importer.emit(relax.op.expand_dims(x, 2)) if flat else x
    shape = [dims(x)[1]]
    weight, bias = _affine(weight, shape, dtype, 1.0), _affine(bias, shape, dtype, 0.0)
    x, weight, bias = (cast(importer, v, "float32" if dtype == "bfloat16" else dtype) for v in (x, weight, bias))
    result = importer.emit(
        relax.op.nn.group_norm(
            x,
            weight,
            bias,
            num_groups=groups,
            channel_axis=1,
            axes=list(range(2, len(dims(x)))),
            epsilon=epsilon,
        )
    )
    return cast(importer, importer.emit(relax.op.squeeze(result, [2])) if flat else result, dtype)


def _batch_norm(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """BatchNorm with fixed statistics; the first of torch's three results is the only one that means anything."""
    x, weight, bias, mean, variance = (importer.arg(node, i, "") for i in range(5))
    shape = [dims(x)[1]]
    dtype = str(dtype_of(x))
    weight, bias = _affine(weight, shape, dtype, 1.0), _affine(bias, shape, dtype, 0.0)
    x, weight, bias, mean, variance = _in_one_dtype(importer, x, weight, bias, mean, variance)
    result = importer.emit(
        relax.op.nn.batch_norm(x, weight, bias, mean, variance, axis=1, epsilon=float(node.args[-1]), training=False)
    )
    return [cast(importer, importer.emit(relax.TupleGetItem(result, 0)), dtype)]


def _batch_norm_in_training(importer: Importer, node: fx.Node) -> list[relax.Expr | None]:
    """(result, None, None, new running mean, new running variance): normalized by the batch's own statistics.

    Relax moves the running variance towards the batch's variance, torch towards n / (n - 1) times that. Where the call
    itself says that nothing is trained, the statistics stay.
    """
    x, weight, bias, mean, variance = (importer.arg(node, i, "") for i in range(5))
    if not importer.arg(node, 5, "training"):
        return [*_batch_norm(importer, node), None, None, mean, variance]
    momentum, epsilon = (float(value) for value in node.args[-2:])
    shape, stored, kept = [dims(x)[1]], str(dtype_of(x)), str(dtype_of(mean))
    weight, bias = _affine(weight, shape, stored, 1.0), _affine(bias, shape, stored, 0.0)
    x, weight, bias, mean, variance = _in_one_dtype(importer, x, weight, bias, mean, variance)
    dtype = str(dtype_of(x))
    options = {"axis": 1, "epsilon": epsilon, "momentum": momentum, "training": True}
    whole = importer.emit(relax.op.nn.batch_norm(x, weight, bias, mean, variance, **options))
    result, new_mean, biased = (importer.emit(relax.TupleGetItem(whole, i)) for i in range(3))
    count = math.prod(size for axis, size in enumerate(dims(x)) if axis != 1)
    others = importer.number(count - 1, dtype)
    old = importer.emit(relax.op.multiply(variance, relax.const(1.0 - momentum, dtype)))
    moved = importer.emit(relax.op.subtract(biased, old))
    excess = importer.emit(relax.op.divide(moved, others))
    new_variance = importer.emit(relax.op.add(biased, excess))
    return [
        cast(importer, result, stored),
        None,
        None,
        *(cast(importer, new, kept) for new in (new_mean, new_variance)),
    ]


def _group_norm_with_statistics(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    x, weight, bias = (importer.arg(node, i, "") for i in range(3))
    dtype, groups, epsilon = importer.type_of(node.meta["val"][0])[1], int(node.args[6]), float(node.args[7])
    result = _normalized_groups(importer, x, weight, bias, groups, epsilon, dtype)
    rows = relax.op.reshape(x, [dims(x)[0], groups, -1])
    return [result, *_statistics(importer, node, rows, [-1], epsilon)]


def _norm_of_one_entry(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """Batch statistics of a batch of one, as instance norm is written: each channel is a group."""
    x, weight, bias = (importer.arg(node, i, "") for i in range(3))
    if dims(x)[0] != 1 or not isinstance(dims(x)[1], int) or not importer.arg(node, 3, "training"):
        raise ImportModelError("statistics of several entries, or of a number of channels known only at run time")
    dtype, epsilon = importer.type_of(node.meta["val"][0])[1], float(node.args[5])
    return [_normalized_groups(importer, x, weight, bias, dims(x)[1], epsilon, dtype)]


def _in_one_dtype(importer: Importer, *values: relax.Expr) -> list[relax.Expr]:
    """What Relax wants in one dtype, and torch takes in several: then in float32, in which torch computes it."""
    dtypes = {dtype_of(value) for value in values}
    return [value if len(dtypes) == 1 else cast(importer, value, "float32") for value in values]


def _affine(value: relax.Expr | None, shape: list[int], dtype: str | None, default: float) -> relax.Expr:
    return relax.const(np.full(shape, default), dtype) if value is None else value


#: Converters by the name of the overload.
LAYERS: dict[str, Converter] = {
    "_native_batch_norm_legit.no_stats": _norm_of_one_entry,
    "_native_batch_norm_legit_functional.default": _batch_norm_in_training,
    "_log_softmax.default": partial(_softmax, operator=relax.op.nn.log_softmax),
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "_softmax.default": partial(_softmax, operator=relax.op.nn.softmax),
    "addbmm.default": _sum_of_products,
    "addmm.default": _addmm,
    "baddbmm.default": _addmm,
    "bmm.default": _matmul,
    "convolution.default": _convolution,
    "embedding.default": _embedding,
    "group_norm.default": _group_norm,
    "layer_norm.default": _layer_norm,
    "linear.default": _linear,
    "log_softmax.int": partial(_softmax, operator=relax.op.nn.log_softmax),
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "native_group_norm.default": _group_norm_with_statistics,
    "native_layer_norm.default": _layer_norm_with_statistics,
    "softmax.int": partial(_softmax, operator=relax.op.nn.softmax),
}
