"""Normalizations that no kernel takes whole, in operators that kernels do take."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from autocast.ir import dims, dtype_of, is_op, shape_of, storage
from autocast.ir.rewriting import BindingRewriter
from autocast.kernels.storage import LOW
from autocast.operators.own import normalize_batch


def batch_norm(
    rewriter: BindingRewriter, call: relax.Call, data: relax.Expr, *statistics: relax.Expr
) -> relax.Tuple | None:
    """Training: statistics of the batch, and the next running ones. Inference: a factor and an offset by channel."""
    emit, op = rewriter.emit, relax.op
    stored = storage(data)
    if stored in LOW:
        # Here, not where each operator is widened: statistics, and what is made of them, are never stored low.
        wide = [emit(op.astype(operand, "float32")) for operand in (data, *statistics)]
        whole = batch_norm(rewriter, relax.Call(call.op, wide, call.attrs), *wide)
        return whole if whole is None else relax.Tuple([emit(op.astype(field, stored)) for field in whole.fields])
    gamma, beta, mean, variance = statistics
    if call.attrs.training is None or call.attrs.training:
        return normalize_batch(rewriter.emit, call, data, *statistics)
    if not call.attrs.center or not call.attrs.scale:
        return None
    epsilon = relax.const(float(call.attrs.epsilon), dtype_of(variance))
    factor = emit(op.multiply(gamma, emit(op.rsqrt(emit(op.add(variance, epsilon))))))
    offset = emit(op.subtract(beta, emit(op.multiply(mean, factor))))
    rank, axis = len(dims(data)), int(call.attrs.axis)
    others = [i for i in range(rank) if i != axis % rank]
    factor, offset = (emit(op.expand_dims(vector, others)) for vector in (factor, offset))
    result = emit(op.add(emit(op.multiply(data, factor)), offset))
    return relax.Tuple([result, mean, variance])


def group_norm(
    rewriter: BindingRewriter, call: relax.Call, data: relax.Expr, scale: relax.Expr, offset: relax.Expr
) -> relax.Expr | None:
    """Where channels are last: sums over space for each channel, from which small ones make those of the groups."""
    shape, attributes = dims(data), call.attrs
    is_named = all(isinstance(dim, int | tirx.Var) for dim in shape)
    if storage(data) == "float64" or not is_named or not isinstance(shape[int(attributes.channel_axis)], int):
        return _in_groups(rewriter, call, data, scale, offset)
    *space, channel = range(len(shape))
    batch, *space = space
    axes = sorted(int(axis) % len(shape) for axis in attributes.axes)
    if int(attributes.channel_axis) % len(shape) != channel or axes != space or storage(data) != "float32":
        return None
    emit, op = rewriter.emit, relax.op
    groups = relax.ShapeExpr([shape[batch], attributes.num_groups, shape[channel] // attributes.num_groups])
    by_channel = relax.ShapeExpr([dim if axis in (batch, channel) else 1 for axis, dim in enumerate(shape)])

    def mean(value: relax.Expr) -> relax.Expr:
        in_groups = emit(op.reshape(emit(op.mean(value, space)), groups))
        return emit(op.mean(in_groups, 2, keepdims=True))

    def for_channels(value: relax.Expr) -> relax.Expr:
        return emit(op.reshape(emit(op.broadcast_to(value, groups)), by_channel))

    centered = emit(op.subtract(data, for_channels(mean(data))))
    variance = mean(emit(op.multiply(centered, centered)))
    epsilon = relax.const(float(attributes.epsilon), "float32")
    result = op.multiply(centered, for_channels(emit(op.rsqrt(emit(op.add(variance, epsilon))))))
    if attributes.scale:
        result = op.multiply(emit(result), scale)
    return op.add(emit(result), offset) if attributes.center else result


def _in_groups(
    rewriter: BindingRewriter, call: relax.Call, data: relax.Expr, scale: relax.Expr, offset: relax.Expr
) -> relax.Expr:
    """A group_norm that TVM has no kernel for, or whose squares it takes before it takes the mean away."""
    emit, op, attributes, shape = rewriter.emit, relax.op, call.attrs, dims(data)
    axis, groups = int(attributes.channel_axis) % len(shape), int(attributes.num_groups)
    members = tvm.sym.Analyzer().simplify(tirx.convert(shape[axis]) // groups)
    grouped = emit(op.reshape(data, [*shape[:axis], groups, members, *shape[axis + 1 :]]))
    if not isinstance(members, tirx.Var | tirx.IntImm):  # kernels of rows take sizes that have names
        members = tirx.Var("members", "int64")
        named = relax.TensorType([*shape[:axis], groups, members, *shape[axis + 1 :]], storage(data))
        grouped = rewriter.builder_.match_cast(grouped, named)
    channels = [groups, members, *[1] * (len(shape) - axis - 1)]
    axes = [axis + 1, *(i + (i > axis) for i in (int(i) % len(shape) for i in attributes.axes))]
    scale, offset = (emit(op.reshape(vector, channels)) for vector in (scale, offset))
    return op.reshape(_by_formula(rewriter, call, grouped, axes, scale, offset), relax.ShapeExpr(shape))


def norm(rewriter: BindingRewriter, call: relax.Call, data: relax.Expr, *vectors: relax.Expr) -> relax.Expr | None:
    """layer_norm, rms_norm and instance_norm of float64, and over axes that are not the last ones in their order."""
    emit, op = rewriter.emit, relax.op
    if shape_of(data) is None:
        return None
    rank = len(dims(data))
    axes = [int(axis) % rank for axis in call.attrs.axes]
    if storage(data) != "float64" and axes == list(range(rank - len(axes), rank)):
        return None
    is_instance = is_op(call, "relax.nn.instance_norm")
    if is_instance and storage(data) != "float64":
        return None
    named = [int(call.attrs.channel_axis) % rank] if is_instance else axes  # an axis of data for each of a vector's
    shape = [dims(data)[axis] if axis in named else 1 for axis in range(rank)]
    order = [named.index(axis) for axis in sorted(named)]
    vectors = tuple(emit(op.reshape(emit(op.permute_dims(vector, order)), shape)) for vector in vectors)
    return _by_formula(rewriter, call, data, axes, *vectors)


def _by_formula(
    rewriter: BindingRewriter,
    call: relax.Call,
    data: relax.Expr,
    axes: list[int],
    scale: relax.Expr,
    offset: relax.Expr | None = None,
) -> relax.Expr:
    """What normalizes `data` along `axes`; of float32 where it is stored lower. Vectors are broadcast; rms has one."""
    emit, op, attributes, stored = rewriter.emit, relax.op, call.attrs, storage(data)

    def wide(value: relax.Expr) -> relax.Expr:
        return emit(op.astype(value, "float32")) if storage(value) in LOW else value

    data = wide(data)
    centered = data if offset is None else emit(op.subtract(data, emit(op.mean(data, axes, keepdims=True))))
    variance = emit(op.mean(emit(op.multiply(centered, centered)), axes, keepdims=True))
    epsilon = relax.const(float(attributes.epsilon), dtype_of(variance))
    result = emit(op.multiply(centered, emit(op.rsqrt(emit(op.add(variance, epsilon))))))
    if offset is None or attributes.scale:
        result = emit(op.multiply(result, wide(scale)))
    if offset is not None and attributes.center:
        result = emit(op.add(result, wide(offset)))
    return emit(op.astype(result, stored)) if stored in LOW else result


def std(rewriter: BindingRewriter, call: relax.Call, data: relax.Expr) -> relax.Expr | None:
    """Of what is multiplied by a power of two first where its squares would overflow or vanish."""
    if dtype_of(data) not in ("float32", "bfloat16") or shape_of(data) is None or 0 in dims(data):
        return None
    emit, op, axes = rewriter.emit, relax.op, call.attrs.axis

    def number(exponent: int) -> relax.Expr:
        return relax.const(2.0**exponent, dtype_of(data))

    largest = emit(op.max(emit(op.abs(data)), axes, keepdims=True))
    factor = emit(op.where(emit(op.greater(largest, number(48))), number(-96), number(0)))
    factor = emit(op.where(emit(op.less(largest, number(-48))), number(96), factor))
    variance = emit(op.variance(emit(op.multiply(data, factor)), axes, keepdims=True))
    result = op.divide(emit(op.sqrt(variance)), factor)
    return result if call.attrs.keepdims else op.reshape(emit(result), shape_of(call))
