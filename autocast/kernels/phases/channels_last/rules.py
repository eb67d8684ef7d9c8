"""What becomes of each operator of data whose channels are last."""

from __future__ import annotations

from math import prod

from tvm import relax

from autocast.ir import dims, is_op, is_tensor, permutation, same_shape, shape_of, static_shape
from autocast.kernels.matching.convolutions.declined import declined
from autocast.kernels.phases.channels_last.axes import LAYOUTS, moved_attributes, place
from autocast.kernels.phases.channels_last.rewriter import Answer, Behaviour, ChannelsLast
from autocast.operators import row_of


def _same(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """The same operator of moved data, with those of its attributes changed that depend on the layout."""
    data, *others = call.args
    if not rewriter.is_last(data):
        return None
    field = data.fields[0] if isinstance(data, relax.Tuple) else data
    attributes = moved_attributes(call, len(dims(field)))
    operands = [rewriter.moved(data), *map(rewriter.new, others)]
    return relax.Call(call.op, operands, attributes, call.ty_args), True


def _together(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """The same operator where all operands are images."""
    if str(call.attrs.layout) not in LAYOUTS:
        return None
    operands = [rewriter.moved(operand) for operand in call.args]
    return relax.Call(call.op, operands, moved_attributes(call, len(dims(call))), call.ty_args), True


def _convolution(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    data = call.args[0]
    if str(call.attrs.data_layout) not in LAYOUTS or declined(call) is not None:
        return None
    if not rewriter.is_last(data):
        if (product := _product_of_patches(rewriter, call)) is not None:
            return product, True
        rewriter.moved(data)
    return _same(rewriter, call)


def _pointwise(call: relax.Call) -> bool:
    """Whether each pixel is seen by itself, in a convolution that is one product."""
    attributes = call.attrs
    steps = [*attributes.strides, *attributes.dilation]
    return (
        all(size == 1 for size in dims(call.args[1])[2:])
        and all(int(step) == 1 for step in steps)
        and not any(map(int, attributes.padding))
        and int(attributes.groups) == 1
    )


def _transposed(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """Where each pixel is seen by itself, the product with the weights as they are."""
    data, weights = call.args
    if declined(call) is not None or not _pointwise(call) or str(call.attrs.data_layout) not in LAYOUTS:
        return _convolution(rewriter, call)
    matrix = rewriter.emit(relax.op.reshape(rewriter.new(weights), dims(weights)[:2]))
    return relax.op.matmul(rewriter.moved(data), matrix, out_dtype=call.attrs.out_dtype or None), True


def _weight_gradient(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """The same of moved tensors; where each pixel is seen by itself, the product over all pixels."""
    data, weights, adjoint = call.args
    if str(call.attrs.data_layout) not in LAYOUTS:
        return None
    data, adjoint = rewriter.moved(data), rewriter.moved(adjoint)
    if not _pointwise(call):
        attributes = moved_attributes(call, len(dims(call.args[0])))
        return relax.Call(call.op, [data, rewriter.new(weights), adjoint], attributes), False
    rows = [rewriter.emit(relax.op.reshape(tensor, _as_rows(dims(tensor)))) for tensor in (adjoint, data)]
    product = relax.op.matmul(rewriter.emit(relax.op.permute_dims(rows[0])), rows[1], out_dtype="float32")
    return relax.op.reshape(rewriter.emit(product), dims(weights)), False


def _as_rows(shape: tuple) -> relax.ShapeExpr:
    """A row for each pixel."""
    return relax.ShapeExpr([prod(shape[1:-1], start=shape[0]), shape[-1]])


def _product_of_patches(rewriter: ChannelsLast, call: relax.Call) -> relax.Expr | None:
    """Windows that tile the data exactly, as those of a vision transformer do: one product of matrices."""
    data, weights = call.args
    attributes, shape, kernel = call.attrs, dims(data), static_shape(weights)
    if not is_op(call, "relax.nn.conv1d", "relax.nn.conv2d") or kernel is None or attributes.groups != 1:
        return None
    window, space = kernel[2:], shape[2:]
    if [int(s) for s in attributes.strides] != list(window) or any(map(int, attributes.padding)) or max(window) == 1:
        return None
    if any(int(d) != 1 for d in attributes.dilation) or not all(isinstance(size, int) for size in space):
        return None
    if any(size % step for size, step in zip(space, window, strict=True)):
        return None
    emit, op, rank = rewriter.emit, relax.op, len(space)
    counts = [size // step for size, step in zip(space, window, strict=True)]
    split = [extent for pair in zip(counts, window, strict=True) for extent in pair]
    tiles = emit(op.reshape(rewriter.new(data), relax.ShapeExpr([*shape[:2], *split])))
    tiles = emit(op.permute_dims(tiles, [0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)]))
    rows = emit(op.reshape(tiles, relax.ShapeExpr([shape[0], *counts, prod(kernel[1:])])))
    matrix = emit(op.reshape(rewriter.new(weights), [kernel[0], prod(kernel[1:])]))
    return op.matmul(rows, emit(op.permute_dims(matrix)), out_dtype=attributes.out_dtype or None)


def _elementwise(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    shape = shape_of(call)
    if shape is None or any(is_tensor(operand) and shape_of(operand) is None for operand in call.args):
        return None
    whole = [rewriter.is_last(operand) and len(dims(operand)) == len(shape) for operand in call.args]
    if not any(whole):
        return None
    if is_op(call, "relax.ewise_fma"):  # its operands have one shape
        return relax.Call(call.op, [rewriter.moved(operand) for operand in call.args], call.attrs, call.ty_args), True
    operands = [rewriter.broadcast(operand, len(shape)) for operand in call.args]
    if all(len(shape_of(operand) or ()) < len(shape) for operand in operands):  # the result begins with ones, too
        place = whole.index(True)
        operands[place] = rewriter.moved(call.args[place])
    return relax.Call(call.op, operands, call.attrs, call.ty_args), True


def _item(rewriter: ChannelsLast, item: relax.TupleGetItem) -> Answer:
    whole = item.tuple_value
    return (relax.TupleGetItem(rewriter.last[whole], item.index), True) if rewriter.is_last(whole) else None


def _slice(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    data, axes, *bounds = call.args
    if not rewriter.is_last(data) or not isinstance(axes, relax.Tuple):
        return None
    places = relax.Tuple([relax.prim_value(place(int(axis), len(dims(data)))) for axis in axes.fields])
    operands = [rewriter.moved(data), places, *map(rewriter.new, bounds)]
    return relax.Call(call.op, operands, call.attrs, call.ty_args), True


def _reduction(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """Without the channels, or without all of space, the rest is in order; else the channels are still last.

    Without the batch, what is left begins with the channels.
    """
    data = call.args[0]
    if not rewriter.is_last(data) or call.attrs.axis is None:
        return None
    rank = len(dims(data))
    axes = {int(axis) % rank for axis in call.attrs.axis}
    in_order = not call.attrs.keepdims and (1 in axes or axes >= set(range(2, rank)))
    reduced = relax.Call(call.op, [rewriter.moved(data)], moved_attributes(call, rank), call.ty_args)
    if 0 not in axes or call.attrs.keepdims or in_order:
        return reduced, not in_order
    last = rank - len(axes) - 1
    return relax.op.permute_dims(rewriter.emit(reduced), [last, *range(last)]), False


def _reshape(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """What keeps the batch and the channels, and only writes space as more or fewer dimensions."""
    data = call.args[0]
    shape, source = shape_of(call), shape_of(data)
    if shape is None or source is None or min(len(shape), len(source)) < 2 or not same_shape(source[:2], shape[:2]):
        return None
    if not rewriter.is_last(data) and not (len(source) == 2 and len(shape) > 2):
        return None
    value = rewriter.last[data] if rewriter.is_last(data) else rewriter.new(data)
    return relax.op.reshape(value, relax.ShapeExpr([shape[0], *shape[2:], shape[1]])), len(shape) > 2


def _permute_dims(rewriter: ChannelsLast, call: relax.Call) -> Answer:
    """What moves the channels to the end is done already; what moves them from there is not done yet."""
    data, axes, rank = call.args[0], permutation(call), len(dims(call))
    if rewriter.is_last(data):
        places = [place(axis, rank) for axis in axes]
        value = rewriter.moved(data)
        return (value if places == sorted(places) else relax.op.permute_dims(value, places)), False
    if rank > 2 and axes == [0, rank - 1, *range(1, rank - 1)] and isinstance(data, relax.Var):
        return rewriter.new(data), True
    return None


#: How operators behave that can have channels last, as their rows say.
BEHAVIOURS: dict[str, Behaviour] = {
    "axis": _same,
    "convolution": _convolution,
    "elementwise": _elementwise,
    "permutation": _permute_dims,
    "reduction": _reduction,
    "reshape": _reshape,
    "slice": _slice,
    "together": _together,
    "transposed convolution": _transposed,
    "weight gradient": _weight_gradient,
}


def rule_of(value: relax.Expr) -> Behaviour | None:
    """The rule for what is bound to a variable; None where it needs its channels in torch's place."""
    if isinstance(value, relax.TupleGetItem):
        return _item
    row = row_of(value)
    return BEHAVIOURS.get(row.channels_last) if row is not None else None
