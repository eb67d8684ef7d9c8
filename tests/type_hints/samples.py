"""One sample call for every operator with a floating-point tensor argument, all arguments in float32."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.global_info import VDevice
from tvm.relax.op import grad, image, nn, vision

import type_hints
from autocast.operators import own


def tensor(*shape: int, dtype: str = "float32") -> relax.Var:
    """A variable that stands for a tensor."""
    return relax.Var("x", relax.TensorType(shape, dtype))


def index(*shape: int) -> relax.Var:
    """A variable that stands for a tensor of int64 indices."""
    return tensor(*shape, dtype="int64")


def boolean(*shape: int) -> relax.Var:
    """A variable that stands for a tensor of booleans."""
    return tensor(*shape, dtype="bool")


def number(value: float, dtype: str = "float32") -> relax.Expr:
    """A literal 0-d tensor."""
    return relax.const(value, dtype)


_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log negative round rsqrt sigmoid sign sin sinh "
    "sqrt square tan tanh trunc isfinite isinf isnan nn.relu nn.gelu nn.gelu_tanh nn.selu nn.silu nn.leakyrelu "
    "nn.expm1 nn.log1p nn.softplus nn.softmax nn.log_softmax nn.dropout nn.batch_flatten flatten size shape_of "
    "zeros_like ones_like eye_like tril triu argmax argmin max min mean median prod std sum variance sort argsort "
    "topk nonzero unique permute_dims grad.no_grad grad.start_checkpoint grad.end_checkpoint"
)
_BINARY = (
    "add subtract multiply divide floor_divide mod floor_mod power atan2 log_add_exp maximum minimum equal not_equal "
    "greater greater_equal less less_equal"
)


def _function(short_name: str) -> Callable[..., relax.Expr]:
    namespaces = {"nn": nn, "grad": grad}
    namespace, _, name = short_name.rpartition(".")
    return getattr(namespaces.get(namespace, op), name)


def _batch_norm_attrs() -> tvm.ir.Attrs:
    return nn.batch_norm(_images(), *[tensor(4)] * 4, axis=1).attrs


def _images() -> relax.Var:
    return tensor(1, 4, 8, 8)


_SPECIAL = (
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma erfc erfcx erfinv frexp i0 i0e i1 i1e lgamma log_ndtr ndtri "
    "signbit"
)

#: Operators of our own that are elementwise.
_BACKWARD = "relu gelu gelu_tanh silu selu sigmoid tanh"

_CROSS_ENTROPY = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
_HEADS = (1, 4, 2, 8)


def _weight_backward(rank: int) -> relax.Call:
    forward = _function(f"nn.conv{rank}d")(tensor(1, 4, *[8] * rank), tensor(5, 4, *[3] * rank))
    backward = own.OPERATORS[f"relax.grad.conv{rank}d_weight_backward"]
    return backward(*forward.args, tensor(1, 5, *[6] * rank), attrs=forward.attrs)


SAMPLES: dict[str, Callable[[], relax.Call]] = {
    **{
        f"relax.grad.{name}_backward": lambda name=name: own.OPERATORS[f"relax.grad.{name}_backward"](
            tensor(4, 6), tensor(4, 6)
        )
        for name in _BACKWARD.split()
    },
    **{f"relax.{name}": lambda name=name: _function(name)(tensor(4, 6)) for name in _UNARY.split()},
    **{f"relax.{name}": lambda name=name: _function(name)(tensor(4, 6), tensor(4, 6)) for name in _BINARY.split()},
    **{
        f"relax.special.{name}": lambda name=name: getattr(own.special, name)(tensor(4, 6)) for name in _SPECIAL.split()
    },
    **{
        f"relax.special.{name}": lambda name=name: getattr(own.special, name)(tensor(4, 6), tensor(4, 6))
        for name in ("nextafter", "zeta")
    },
    "relax.special.polygamma": lambda: own.special.polygamma(tensor(4, 6), n=2),
    "relax.astype": lambda: op.astype(tensor(2), "float16"),
    "relax.bucketize": lambda: op.bucketize(tensor(4), tensor(3)),
    "relax.broadcast_to": lambda: op.broadcast_to(tensor(1, 3), (2, 3)),
    "relax.clip": lambda: op.clip(tensor(2), 0.0, 6.0),
    "relax.collapse_sum_like": lambda: op.collapse_sum_like(tensor(4, 3), tensor(1, 3)),
    "relax.collapse_sum_to": lambda: op.collapse_sum_to(tensor(4, 3), (1, 3)),
    "relax.concat": lambda: op.concat([tensor(2, 3), tensor(4, 3)]),
    "relax.cumprod": lambda: op.cumprod(tensor(4), 0),
    "relax.cumsum": lambda: op.cumsum(tensor(4), 0),
    "relax.dequantize": lambda: op.dequantize(tensor(4, 3, dtype="int8"), tensor(3), tensor(3, dtype="int8")),
    "relax.dynamic_strided_slice": lambda: op.dynamic_strided_slice(tensor(4, 3), index(2), index(2), index(2)),
    "relax.einsum": lambda: op.einsum([tensor(2, 3), tensor(3, 4)], "ij,jk->ik"),
    "relax.ewise_fma": lambda: op.ewise_fma(tensor(2), tensor(2), tensor(2)),
    "relax.expand_dims": lambda: op.expand_dims(tensor(2), 0),
    "relax.flip": lambda: op.flip(tensor(2), 0),
    "relax.full": lambda: op.full((2, 3), number(1.0)),
    "relax.full_like": lambda: op.full_like(tensor(2), number(1.0)),
    "relax.gather_elements": lambda: op.gather_elements(tensor(4, 3), index(4, 3)),
    "relax.gather_nd": lambda: op.gather_nd(tensor(4, 3), index(2, 1)),
    "relax.grad.avg_pool2d_backward": lambda: grad.avg_pool2d_backward(_images(), _images()),
    "relax.grad.attention_backward": lambda: own.attention_backward(
        *(tensor(*_HEADS) for _ in range(4)), tensor(1, 2, 4, 4), attrs=nn.attention(*[tensor(*_HEADS)] * 3).attrs
    ),
    "relax.grad.batch_norm_backward": lambda: own.batch_norm_backward(
        _images(), tensor(4), _images(), attrs=_batch_norm_attrs()
    ),
    **{f"relax.grad.conv{rank}d_weight_backward": lambda rank=rank: _weight_backward(rank) for rank in (1, 2, 3)},
    "relax.grad.broadcast_backward": lambda: own.broadcast_backward(tensor(4, 6), axis=[0]),
    "relax.grad.cross_entropy_backward": lambda: own.cross_entropy_backward(
        tensor(4, 3), index(4), tensor(), **_CROSS_ENTROPY
    ),
    "relax.grad.group_norm_backward": lambda: own.group_norm_backward(
        _images(),
        tensor(4),
        _images(),
        num_groups=2,
        channel_axis=1,
        axes=[2, 3],
        epsilon=1e-5,
        center=True,
        scale=True,
    ),
    "relax.grad.instance_norm_backward": lambda: own.instance_norm_backward(
        _images(), tensor(4), _images(), channel_axis=1, axes=[2, 3], epsilon=1e-5, center=True, scale=True
    ),
    "relax.grad.gated_add_backward": lambda: own.gated_add_backward(*(tensor(4, 6) for _ in range(3))),
    "relax.grad.lstm_backward": lambda: own.lstm_backward(
        tensor(5, 2, 12), tensor(12, 3), tensor(2, 3), tensor(5, 2, 3), tensor(2, 3), tensor(2, 3), reverse=False
    ),
    "relax.grad.gru_backward": lambda: own.gru_backward(
        tensor(5, 2, 12), tensor(9, 3), tensor(5, 2, 3), tensor(5, 2, 3), tensor(2, 3), reverse=False
    ),
    "relax.grad.rnn_backward": lambda: own.rnn_backward(
        tensor(5, 2, 3), tensor(3, 3), tensor(5, 2, 3), tensor(2, 3), reverse=True, activation="tanh"
    ),
    "relax.grad.log_softmax_backward": lambda: own.log_softmax_backward(tensor(4, 6), tensor(4, 6), axis=-1),
    "relax.grad.softmax_backward": lambda: own.softmax_backward(tensor(4, 6), tensor(4, 6), axis=-1),
    "relax.grad.layer_norm_backward": lambda: own.layer_norm_backward(
        tensor(4, 6), tensor(6), tensor(4, 6), axes=[-1], epsilon=1e-5, center=True, scale=True
    ),
    "relax.grad.leakyrelu_backward": lambda: own.leakyrelu_backward(tensor(4, 6), tensor(4, 6), alpha=0.01),
    "relax.grad.max_pool2d_backward": lambda: grad.max_pool2d_backward(_images(), _images()),
    "relax.grad.rms_norm_backward": lambda: own.rms_norm_backward(
        tensor(4, 6), tensor(6), tensor(4, 6), axes=[-1], epsilon=1e-5
    ),
    "relax.grad.softplus_backward": lambda: own.softplus_backward(tensor(4, 6), tensor(4, 6), beta=1.0, threshold=20.0),
    "relax.grad.nll_loss_backward": lambda: grad.nll_loss_backward(tensor(), tensor(4, 3), index(4), tensor(3)),
    "relax.grad.take_backward": lambda: grad.take_backward(tensor(5, 3), tensor(4, 3), index(5), 0),
    "relax.image.affine_grid": lambda: image.affine_grid(tensor(1, 2, 3), (4, 4)),
    "relax.image.grid_sample": lambda: image.grid_sample(_images(), tensor(1, 2, 4, 4)),
    "relax.image.resize2d": lambda: image.resize2d(_images(), (4, 4)),
    "relax.image.resize3d": lambda: image.resize3d(tensor(1, 2, 4, 4, 4), (2, 2, 2)),
    "relax.hint_on_device": lambda: op.hint_on_device(tensor(2), tvm.cpu()),
    "relax.index_put": lambda: op.index_put(tensor(4, 3), (index(2), index(2)), tensor(2)),
    "relax.index_tensor": lambda: op.index_tensor(tensor(4, 3), [index(2)]),
    "relax.layout_transform": lambda: op.layout_transform(tensor(4, 6), lambda i, j: (j, i)),
    "relax.matmul": lambda: op.matmul(tensor(2, 3), tensor(3, 4)),
    "relax.meshgrid": lambda: op.meshgrid([tensor(2), tensor(3)]),
    "relax.multinomial_from_uniform": lambda: op.multinomial_from_uniform(tensor(2, 5), tensor(2, 1), index(2, 1)),
    "relax.nn.adaptive_avg_pool1d": lambda: nn.adaptive_avg_pool1d(tensor(1, 4, 8), 2),
    "relax.nn.adaptive_avg_pool2d": lambda: nn.adaptive_avg_pool2d(_images(), 2),
    "relax.nn.adaptive_avg_pool3d": lambda: nn.adaptive_avg_pool3d(tensor(1, 2, 4, 4, 4), 2),
    "relax.nn.attention": lambda: nn.attention(tensor(1, 4, 2, 8), tensor(1, 4, 2, 8), tensor(1, 4, 2, 8)),
    "relax.nn.attention_bias": lambda: nn.attention_bias(
        tensor(1, 4, 2, 8), tensor(1, 4, 2, 8), tensor(1, 4, 2, 8), tensor(1, 2, 4, 4)
    ),
    "relax.nn.attention_var_len": lambda: nn.attention_var_len(
        tensor(1, 4, 2, 8),
        tensor(1, 4, 2, 8),
        tensor(1, 4, 2, 8),
        tensor(2, dtype="int32"),
        number(4, "int32"),
        tensor(2, dtype="int32"),
        number(4, "int32"),
    ),
    "relax.nn.avg_pool1d": lambda: nn.avg_pool1d(tensor(1, 4, 8), 2),
    "relax.nn.avg_pool2d": lambda: nn.avg_pool2d(_images(), 2),
    "relax.nn.avg_pool3d": lambda: nn.avg_pool3d(tensor(1, 2, 4, 4, 4), 2),
    "relax.nn.batch_norm": lambda: nn.batch_norm(_images(), tensor(4), tensor(4), tensor(4), tensor(4), axis=1),
    "relax.collective.batch_norm": lambda: own.sync_batch_norm(_images(), *[tensor(4)] * 4, attrs=_batch_norm_attrs()),
    "relax.collective.batch_norm_backward": lambda: own.sync_batch_norm_backward(
        _images(), tensor(4), _images(), tensor(4), tensor(4), attrs=_batch_norm_attrs()
    ),
    "relax.collective.reduce_scatter_start": lambda: own.reduce_scatter_start(
        relax.Tuple([tensor(2, 3), tensor(4)]), count=2
    ),
    "relax.collective.all_reduce_start": lambda: own.all_reduce_start(relax.Tuple([tensor(2, 3), tensor(4)])),
    "relax.nn.conv1d": lambda: nn.conv1d(tensor(1, 4, 8), tensor(5, 4, 3)),
    "relax.nn.conv1d_transpose": lambda: nn.conv1d_transpose(tensor(1, 4, 8), tensor(4, 5, 3)),
    "relax.nn.conv2d": lambda: nn.conv2d(_images(), tensor(5, 4, 3, 3)),
    "relax.nn.conv2d_transpose": lambda: nn.conv2d_transpose(_images(), tensor(4, 5, 3, 3)),
    "relax.nn.conv3d": lambda: nn.conv3d(tensor(1, 4, 8, 8, 8), tensor(5, 4, 3, 3, 3)),
    "relax.nn.conv3d_transpose": lambda: nn.conv3d_transpose(tensor(1, 4, 8, 8, 8), tensor(4, 5, 3, 3, 3)),
    "relax.nn.cross_entropy": lambda: own.cross_entropy(tensor(4, 3), index(4), **_CROSS_ENTROPY),
    "relax.nn.cross_entropy_with_logits": lambda: nn.cross_entropy_with_logits(tensor(4, 3), tensor(4, 3)),
    "relax.nn.grouped_matmul": lambda: own.grouped_matmul(tensor(5, 4), tensor(3, 4, 6), index(3)),
    "relax.nn.hardtanh": lambda: own.hardtanh(tensor(4, 6), low=-1.0, high=1.0),
    "relax.nn.gated_add": lambda: own.gated_add(*(tensor(4, 6) for _ in range(3))),
    "relax.nn.gru": lambda: own.gru(tensor(5, 2, 9), tensor(9, 3), tensor(3), tensor(2, 3), reverse=True),
    "relax.nn.lstm": lambda: own.lstm(tensor(5, 2, 12), tensor(12, 3), tensor(2, 3), tensor(2, 3), reverse=False),
    "relax.nn.rnn": lambda: own.rnn(tensor(5, 2, 3), tensor(3, 3), tensor(2, 3), reverse=False, activation="relu"),
    "relax.nn.group_norm": lambda: nn.group_norm(_images(), tensor(4), tensor(4), 2, 1, [2, 3]),
    "relax.nn.instance_norm": lambda: nn.instance_norm(_images(), tensor(4), tensor(4), 1, [2, 3]),
    "relax.nn.layer_norm": lambda: nn.layer_norm(tensor(4, 6), tensor(6), tensor(6), -1),
    "relax.nn.max_pool1d": lambda: nn.max_pool1d(tensor(1, 4, 8), 2),
    "relax.nn.index_copy": lambda: own.index_copy(tensor(4, 3), index(2), tensor(2, 3), axis=0),
    "relax.nn.max_pool2d": lambda: nn.max_pool2d(_images(), 2),
    "relax.nn.max_pool3d": lambda: nn.max_pool3d(tensor(1, 2, 4, 4, 4), 2),
    "relax.nn.nll_loss": lambda: nn.nll_loss(tensor(4, 3), index(4), tensor(3)),
    "relax.nn.pad": lambda: nn.pad(tensor(2, 3), [0, 0, 1, 1]),
    "relax.nn.pixel_shuffle": lambda: nn.pixel_shuffle(_images(), 2),
    "relax.nn.prelu": lambda: nn.prelu(_images(), tensor(4)),
    "relax.nn.rms_norm": lambda: nn.rms_norm(tensor(4, 6), tensor(6), -1),
    "relax.outer": lambda: op.outer(tensor(2), tensor(3)),
    "relax.quantize": lambda: op.quantize(tensor(4, 3), tensor(3), tensor(3, dtype="int8")),
    "relax.repeat": lambda: op.repeat(tensor(2), 2, 0),
    "relax.reshape": lambda: op.reshape(tensor(2, 3), (6,)),
    "relax.reverse_sequence": lambda: op.reverse_sequence(tensor(4, 3), index(3), 0, 1),
    "relax.scatter_elements": lambda: op.scatter_elements(tensor(4, 3), index(2, 3), tensor(2, 3)),
    "relax.scatter_nd": lambda: op.scatter_nd(tensor(4, 3), index(2, 1), tensor(2, 3)),
    "relax.nn.seeded_dropout": lambda: own.seeded_dropout(tensor(4, 6), tensor(2, dtype="int32"), rate=0.1, stream=3),
    "relax.nn.seeded_normal": lambda: own.seeded_normal(tensor(4, 6), tensor(2, dtype="int32"), stream=3),
    "relax.nn.seeded_uniform": lambda: own.seeded_uniform(tensor(4, 6), tensor(2, dtype="int32"), stream=3),
    "relax.slice_scatter": lambda: op.slice_scatter(tensor(4, 3), tensor(2, 3), 0, 2, 1),
    "relax.split": lambda: op.split(tensor(4, 6), 2),
    "relax.squeeze": lambda: op.squeeze(tensor(1, 3)),
    "relax.stack": lambda: op.stack([tensor(2), tensor(2)]),
    "relax.nn.stochastic_round": lambda: own.stochastic_round(tensor(4, 6), tensor(2, dtype="int32"), stream=3),
    "relax.strided_slice": lambda: op.strided_slice(tensor(4, 3), [0], [1], [3]),
    "relax.take": lambda: op.take(tensor(4, 3), index(2), 0),
    "relax.tile": lambda: op.tile(tensor(2), 2),
    "relax.to_vdevice": lambda: op.to_vdevice(tensor(2), VDevice("llvm")),
    "relax.vision.all_class_non_max_suppression": lambda: vision.all_class_non_max_suppression(
        tensor(1, 5, 4), tensor(1, 3, 5), index(), tensor(), tensor()
    ),
    "relax.vision.get_valid_counts": lambda: vision.get_valid_counts(tensor(1, 5, 6)),
    "relax.vision.multibox_transform_loc": lambda: vision.multibox_transform_loc(
        tensor(1, 3, 5), tensor(1, 20), tensor(1, 5, 4)
    ),
    "relax.vision.non_max_suppression": lambda: vision.non_max_suppression(
        tensor(1, 5, 6), tensor(1, dtype="int32"), tensor(1, 5, dtype="int32")
    ),
    "relax.vision.roi_align": lambda: vision.roi_align(_images(), tensor(2, 5), (2, 2), 1.0),
    "relax.vision.roi_pool": lambda: vision.roi_pool(_images(), tensor(2, 5), (2, 2), 1.0),
    "relax.vision.suppress": lambda: own.suppress(tensor(1, 5, 4), tensor(1, 3, 5), index(1), tensor(1), tensor(1)),
    "relax.where": lambda: op.where(boolean(2), tensor(2), tensor(2)),
    "relax.wrap_param": lambda: op.wrap_param(relax.const([1.0, 2.0], "float32"), "float16"),
}


def retype(expr: relax.Expr, hint: type_hints.Hint) -> relax.Expr:
    """`expr` as a variable of the dtype that `hint` asks for; itself where the hint is "do not touch"."""
    if isinstance(hint, type_hints.TupleType):
        return relax.Tuple(
            [retype(field, field_hint) for field, field_hint in zip(expr.fields, hint.fields, strict=True)]
        )
    if hint.dtype is None:
        return expr
    return relax.Var("y", relax.TensorType(expr.ty.shape, hint.dtype))


def everything(expr: relax.Expr, dtype: str) -> type_hints.Hint:
    """The hint that asks for `dtype` in every floating-point tensor of `expr`."""
    return type_hints.gen_hint_helper(expr.ty, dtype)


def infer(call: relax.Call, args: list[relax.Expr], out_dtype: str | None = None) -> tvm.ir.Type:
    """The result type that TVM infers for the operator of `call` with other arguments (and another `out_dtype`)."""
    if out_dtype is not None:
        return (
            relax.BlockBuilder()
            .normalize(getattr(_namespace_of(call), _short_name(call))(*args, out_dtype=out_dtype))
            .ty
        )
    return relax.BlockBuilder().normalize(relax.Call(call.op, args, call.attrs, call.ty_args)).ty


def _short_name(call: relax.Call) -> str:
    return call.op.name.rpartition(".")[2]


def _namespace_of(call: relax.Call):
    return nn if call.op.name.startswith("relax.nn.") else op


def float_dtypes(type: tvm.ir.Type) -> list[str]:
    """The dtypes of the floating-point tensors in a type, left to right."""
    if isinstance(type, tvm.ir.TupleType):
        return [dtype for field in type.fields for dtype in float_dtypes(field)]
    if isinstance(type, relax.TensorType) and str(type.dtype) in type_hints.CASTABLE:
        return [str(type.dtype)]
    return []
