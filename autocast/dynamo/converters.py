"""Converters of torch's backward operators: each is differentiated by the rule of its forward operator.

So there is one table of gradients, that of `autocast.training.gradients`, for training steps and for torch's graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import fx
from tvm import relax

from autocast.dynamo.adjoints import adjoints
from autocast.dynamo.attention import attention, attention_backward
from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.converters.layers import convolution
from autocast.frontend.converters.pooling import adaptive_average_pool, average_pool, max_pool
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op


def _of_argument(importer: Importer, node: fx.Node, forward: Callable[..., relax.Expr]) -> relax.Expr:
    """`f_backward(grad, x)`."""
    return adjoints(importer, forward(importer.arg(node, 1, "self")), importer.arg(node, 0, "grad_output"))[0]


def _gelu(importer: Importer, node: fx.Node) -> relax.Expr:
    approximate = importer.arg(node, 2, "approximate", "none") == "tanh"
    return _of_argument(importer, node, op.nn.gelu_tanh if approximate else op.nn.gelu)


def _leaky_relu(importer: Importer, node: fx.Node) -> relax.Expr:
    return _of_argument(importer, node, partial(op.nn.leakyrelu, alpha=float(node.args[2])))


def _mish(importer: Importer, node: fx.Node) -> relax.Expr:
    """With t = tanh(softplus(x)), t + x sigmoid(x) (1 - t²)."""
    grad, x = (importer.arg(node, i, "") for i in range(2))
    t = importer.emit(op.tanh(op.nn.softplus(x)))
    rest = op.multiply(x * op.sigmoid(x), relax.const(1, dtype_of(x)) - op.square(t))
    return importer.emit(op.multiply(grad, importer.emit(t + rest)))


def _threshold(importer: Importer, node: fx.Node) -> relax.Expr:
    """Of ReLU, by its result or its argument: both are above 0 at the same places."""
    if node.args[2] != 0:
        raise ImportModelError(f"threshold={node.args[2]}; expected that of relu, 0")
    grad, x = importer.arg(node, 0, "grad_output"), importer.arg(node, 1, "self")
    return adjoints(importer, op.nn.relu(x), grad, result=x)[0]


def _softmax(importer: Importer, node: fx.Node, forward: Callable[..., relax.Expr]) -> relax.Expr:
    """By the result, which torch keeps."""
    grad, result = importer.arg(node, 0, "grad_output"), importer.arg(node, 1, "output")
    if importer.dtype(node) != dtype_of(result):
        raise ImportModelError("an argument of another dtype than the result")
    return adjoints(importer, forward(result, axis_of(result, node.args[2])), grad, result=result)[0]


def _embedding(importer: Importer, node: fx.Node) -> relax.Expr:
    grad, indices = importer.arg(node, 0, "grad_output"), importer.arg(node, 1, "indices")
    rows, (padding, scaled) = importer.arg(node, 2, "num_weights"), node.args[3:5]
    if scaled:
        raise ImportModelError("scale_grad_by_freq")
    if padding >= 0:
        padded = importer.emit(op.equal(indices, relax.const(padding, dtype_of(indices))))
        nothing = relax.const(0, dtype_of(grad))
        grad = importer.emit(op.where(op.expand_dims(padded, -1), nothing, grad))
    weight = importer.emit(op.zeros(relax.ShapeExpr([rows, dims(grad)[-1]]), dtype_of(grad)))
    return adjoints(importer, op.take(weight, indices, axis=0, mode="clip"), grad, (True, False))[0]


def _convolution(importer: Importer, node: fx.Node) -> list[Any]:
    grad, x, weight = (importer.arg(node, i, "") for i in range(3))
    mask = node.args[-1]
    forward = convolution(x, weight, *node.args[4:10])
    of_data, of_weight = adjoints(importer, forward, grad, mask[:2]) if any(mask[:2]) else (None, None)
    others = [axis for axis in range(len(dims(grad))) if axis != 1]
    return [of_data, of_weight, importer.emit(op.sum(grad, others)) if mask[2] else None]


def _pool(importer: Importer, node: fx.Node, space: int, forward: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """Of an image or a volume, or of a batch of them."""
    grad, x = (importer.arg(node, i, "") for i in range(2))
    if len(dims(x)) == space + 2:
        return adjoints(importer, forward(x), grad)[0]
    grad, x = (importer.emit(op.expand_dims(value, 0)) for value in (grad, x))
    return importer.emit(op.squeeze(adjoints(importer, forward(x), grad)[0], [0]))


def _average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    return _pool(importer, node, space, lambda x: average_pool(x, *node.args[2:8]))


#: Of images and of volumes, by the number of axes.
_ADAPTIVE = {2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d}


def _adaptive_average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    sizes = dims(importer.arg(node, 0, "grad_output"))[-space:]
    return _pool(importer, node, space, lambda x: _ADAPTIVE[space](x, list(sizes)))


def _empty(importer: Importer, node: fx.Node) -> relax.Expr:
    """What is written to afterwards."""
    return importer.emit(op.zeros(relax.ShapeExpr(importer.shape(node)), importer.dtype(node)))


def _max_pool(importer: Importer, node: fx.Node) -> relax.Expr:
    return _pool(importer, node, 2, lambda x: max_pool(x, *node.args[2:7]))


def _scale(importer: Importer, weight: relax.Expr | None, shape: Sequence[Any], x: relax.Expr) -> list[relax.Expr]:
    """The scale of a norm, which is 1 where there is none, and its shift, which no gradient reads."""
    one, zero = (importer.emit(_full(shape, value, str(dtype_of(x)))) for value in (1, 0))
    return [one if weight is None else weight, zero]


def _full(shape: Sequence[Any], value: int, dtype: str) -> relax.Expr:
    """A constant of one value, where its shape is known."""
    if all(isinstance(size, int) for size in shape):
        return relax.const(np.full(list(shape), value), dtype)
    return op.full(relax.ShapeExpr(shape), relax.const(value, dtype))


def _of_norm(
    importer: Importer,
    norm: Callable[[relax.Expr], relax.Expr],
    grad: relax.Expr,
    data: relax.Expr,
    weight: relax.Expr | None,
) -> Sequence[Any]:
    """The adjoints of a norm in its scale's dtype: of data that torch.autocast cast, torch scales in float32."""
    narrow, wide = (str(dtype_of(value)) for value in (data, data if weight is None else weight))
    x = cast(importer, data, wide)
    call = norm(x)
    adjoint: Any = cast(importer, grad, wide)
    if call.op.name == "relax.nn.batch_norm":
        of_data, *others = adjoints(importer, call, [adjoint, None, None], (True, True, True, False, False))[:3]
    else:
        of_data, *others = adjoints(importer, call, adjoint)
    return [cast(importer, of_data, narrow), *others]


def _layer_norm(importer: Importer, node: fx.Node) -> Sequence[Any]:
    grad, data, weight = (importer.arg(node, i, "") for i in (0, 1, 3))
    axes, epsilon = list(range(-len(node.args[2]), 0)), float(node.args[4])

    def norm(x: relax.Expr) -> relax.Expr:
        affine = _scale(importer, weight, dims(x)[axes[0] :], x)
        return op.nn.layer_norm(x, *affine, axes=axes, epsilon=epsilon)

    return _of_norm(importer, norm, grad, data, weight)


def _group_norm(importer: Importer, node: fx.Node) -> Sequence[Any]:
    grad, data, weight = (importer.arg(node, i, "") for i in range(3))
    groups, epsilon = int(node.args[3]), float(node.args[4])
    axes = list(range(2, len(dims(data))))

    def norm(x: relax.Expr) -> relax.Expr:
        affine = _scale(importer, weight, dims(x)[1:2], x)
        return op.nn.group_norm(x, *affine, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)

    return _of_norm(importer, norm, grad, data, weight)


def _batch_norm(importer: Importer, node: fx.Node) -> Sequence[Any]:
    grad, data, weight, mean, variance = (importer.arg(node, i, "") for i in range(5))
    training, epsilon = mean is None, float(node.args[5])

    def norm(x: relax.Expr) -> relax.Expr:
        affine = _scale(importer, weight, dims(x)[1:2], x)
        running = [*reversed(affine)] if training else [mean, variance]
        return op.nn.batch_norm(x, *affine, *running, axis=1, epsilon=epsilon, training=training)

    return _of_norm(importer, norm, grad, data, weight)


def _of_sizes(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "x")
    return importer.block_builder.match_cast(x, relax.TensorType(importer.shape(node), dtype_of(x)))


#: Converters by the name of the overload: torch's operators, and those of `statistics`, `attention` and `sizes`.
BACKWARD: dict[str, Converter] = {
    "_adaptive_avg_pool2d.default": partial(adaptive_average_pool, space=2),
    "_adaptive_avg_pool2d_backward.default": partial(_adaptive_average_pool, space=2),
    "_adaptive_avg_pool3d.default": partial(adaptive_average_pool, space=3),
    "_adaptive_avg_pool3d_backward.default": partial(_adaptive_average_pool, space=3),
    "_log_softmax_backward_data.default": partial(_softmax, forward=op.nn.log_softmax),
    "_softmax_backward_data.default": partial(_softmax, forward=op.nn.softmax),
    "autocast::attention.default": attention,
    "autocast::attention_backward.default": attention_backward,
    "avg_pool2d_backward.default": partial(_average_pool, space=2),
    "avg_pool3d_backward.default": partial(_average_pool, space=3),
    "autocast::batch_norm_backward.default": _batch_norm,
    "prims::convert_element_type.default": lambda importer, node: cast(
        importer, importer.arg(node, 0, "a"), importer.dtype(node)
    ),
    "convolution_backward.default": _convolution,
    "embedding_dense_backward.default": _embedding,
    "gelu_backward.default": _gelu,
    "autocast::group_norm_backward.default": _group_norm,
    "autocast::layer_norm_backward.default": _layer_norm,
    "leaky_relu_backward.default": _leaky_relu,
    "autocast::max_pool2d_backward.default": _max_pool,
    "mish_backward.default": _mish,
    "new_empty_strided.default": _empty,
    "autocast::of_sizes.default": _of_sizes,
    "silu_backward.default": partial(_of_argument, forward=op.nn.silu),
    "threshold_backward.default": _threshold,
}
