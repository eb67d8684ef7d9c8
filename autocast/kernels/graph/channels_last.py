"""Keep the channels of images last in memory from one convolution to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op, is_tensor, op_name, same_shape, shape_of, static_shape
from autocast.kernels.convolutions.declined import declined, has_kernel
from autocast.kernels.graph.canonicalize import canonicalize, permutation
from autocast.kernels.graph.operators import CONVOLUTION_GRADIENTS, CONVOLUTIONS, ELEMENTWISE
from autocast.kernels.graph.rewriting import BindingRewriter, dims, rewrite_functions, users_of

#: A new value, and whether it is the old one with axis 1 moved to the end; None: the binding stays as it is.
Answer = tuple[relax.Expr, bool] | None


@mutator
class _ChannelsLast(BindingRewriter):
    """`last` holds the variables that exist as (N, H, W, C), and `first` those of them that exist as they were too."""

    def enter(self, function: relax.Function) -> None:
        bound, _ = users_of(function)
        self.active = any(
            has_kernel(value) or (is_op(value, *CONVOLUTIONS) and declined(value) is None) for value in bound.values()
        )
        self.last: dict[relax.Var, relax.Expr] = {}
        self.first: dict[relax.Var, relax.Expr] = {}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        rule = _RULES.get(_name(binding.value)) if self.active else None
        answer = None if rule is None else rule(self, binding.value)
        if answer is None or not answer[1]:
            return answer and answer[0]
        value = answer[0] if isinstance(answer[0], relax.Var) else self.builder_.emit(answer[0], binding.var.name)
        self.last[binding.var] = value
        return value if isinstance(binding.var, relax.DataflowVar) else _moved_back(value)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        result = super().visit_dataflow_block_(block)
        self.last.clear()  # a block's inner variables are not known outside
        return result

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        if var not in self.last:
            return super().visit_dataflow_var_(var)
        if var not in self.first:
            self.first[var] = self.emit(_moved_back(self.last[var]))
        return self.first[var]

    def is_last(self, expr: relax.Expr) -> bool:
        """Whether `expr` exists with its channels last, or is a tuple of which a field does."""
        if isinstance(expr, relax.Tuple):
            return any(map(self.is_last, expr.fields))
        return isinstance(expr, relax.Var) and expr in self.last

    def moved(self, expr: relax.Expr) -> relax.Expr:
        """`expr` (or the fields of a tuple) with axis 1 at the end."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.moved(field) for field in expr.fields])
        if not self.is_last(expr):
            value = self.new(expr)
            moved = self.emit(_with_channels_last(value))
            if not isinstance(expr, relax.Var):
                return moved
            self.last[expr], self.first[expr] = moved, value
        return self.last[expr]

    def broadcast(self, expr: relax.Expr, rank: int) -> relax.Expr:
        """An operand of elementwise arithmetic in `rank` dimensions, with axis 1 of those at the end.

        Leading ones are dropped: a value for each channel becomes a vector.
        """
        if not is_tensor(expr) or not shape_of(expr):
            return self.new(expr)
        shape = dims(expr)
        padded = (1,) * (rank - len(shape)) + shape
        moved = [padded[axis] for axis in _order(rank)]
        while len(moved) > 1 and _is_one(moved[0]):
            moved.pop(0)
        if not _is_one(padded[1]) and not all(map(_is_one, padded[2:])):
            if len(shape) == rank:
                return self.moved(expr)
            value = self.emit(relax.op.reshape(self.new(expr), relax.ShapeExpr(padded)))
            return self.emit(relax.op.permute_dims(value, _order(rank)))
        value = self.last[expr] if self.is_last(expr) else self.new(expr)
        return self.emit(relax.op.reshape(value, relax.ShapeExpr(moved)))


def _same(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """The same operator of moved data, with those of its attributes changed that depend on the layout."""
    data, *others = call.args
    if not rewriter.is_last(data):
        return None
    field = data.fields[0] if isinstance(data, relax.Tuple) else data
    attributes = _moved_attributes(call, len(dims(field)))
    operands = [rewriter.moved(data), *map(rewriter.new, others)]
    return relax.Call(call.op, operands, attributes, call.ty_args), True


def _together(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """The same operator where all operands are images."""
    if str(call.attrs.layout) not in _LAYOUTS:
        return None
    operands = [rewriter.moved(operand) for operand in call.args]
    return relax.Call(call.op, operands, _moved_attributes(call, len(dims(call))), call.ty_args), True


def _convolution(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    data = call.args[0]
    if str(call.attrs.data_layout) not in _LAYOUTS or declined(call) is not None:
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


def _transposed(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """Where each pixel is seen by itself, the product with the weights as they are."""
    data, weights = call.args
    if declined(call) is not None or not _pointwise(call) or str(call.attrs.data_layout) not in _LAYOUTS:
        return _convolution(rewriter, call)
    matrix = rewriter.emit(relax.op.reshape(rewriter.new(weights), dims(weights)[:2]))
    return relax.op.matmul(rewriter.moved(data), matrix, out_dtype=call.attrs.out_dtype or None), True


def _weight_gradient(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """The same of moved tensors; where each pixel is seen by itself, the product over all pixels."""
    data, weights, adjoint = call.args
    if str(call.attrs.data_layout) not in _LAYOUTS:
        return None
    data, adjoint = rewriter.moved(data), rewriter.moved(adjoint)
    if not _pointwise(call):
        attributes = _moved_attributes(call, len(dims(call.args[0])))
        return relax.Call(call.op, [data, rewriter.new(weights), adjoint], attributes), False
    rows = [rewriter.emit(relax.op.reshape(tensor, _as_rows(dims(tensor)))) for tensor in (adjoint, data)]
    product = relax.op.matmul(rewriter.emit(relax.op.permute_dims(rows[0])), rows[1], out_dtype="float32")
    return relax.op.reshape(rewriter.emit(product), dims(weights)), False


def _as_rows(shape: tuple) -> relax.ShapeExpr:
    """A row for each pixel."""
    return relax.ShapeExpr([prod(shape[1:-1], start=shape[0]), shape[-1]])


def _product_of_patches(rewriter: _ChannelsLast, call: relax.Call) -> relax.Expr | None:
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


def _elementwise(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    shape = shape_of(call)
    if shape is None or any(is_tensor(operand) and shape_of(operand) is None for operand in call.args):
        return None
    whole = [rewriter.is_last(operand) and len(dims(operand)) == len(shape) for operand in call.args]
    if not any(whole):
        return None
    operands = [rewriter.broadcast(operand, len(shape)) for operand in call.args]
    if all(len(shape_of(operand) or ()) < len(shape) for operand in operands):  # the result begins with ones, too
        place = whole.index(True)
        operands[place] = rewriter.moved(call.args[place])
    return relax.Call(call.op, operands, call.attrs, call.ty_args), True


def _item(rewriter: _ChannelsLast, item: relax.TupleGetItem) -> Answer:
    whole = item.tuple_value
    return (relax.TupleGetItem(rewriter.last[whole], item.index), True) if rewriter.is_last(whole) else None


def _slice(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    data, axes, *bounds = call.args
    if not rewriter.is_last(data) or not isinstance(axes, relax.Tuple):
        return None
    places = relax.Tuple([relax.prim_value(_place(int(axis), len(dims(data)))) for axis in axes.fields])
    operands = [rewriter.moved(data), places, *map(rewriter.new, bounds)]
    return relax.Call(call.op, operands, call.attrs, call.ty_args), True


def _reduction(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """Without the channels, or without all of space, the rest is in order; else the channels are still last.

    Without the batch, what is left begins with the channels.
    """
    data = call.args[0]
    if not rewriter.is_last(data) or call.attrs.axis is None:
        return None
    rank = len(dims(data))
    axes = {int(axis) % rank for axis in call.attrs.axis}
    in_order = not call.attrs.keepdims and (1 in axes or axes >= set(range(2, rank)))
    reduced = relax.Call(call.op, [rewriter.moved(data)], _moved_attributes(call, rank), call.ty_args)
    if 0 not in axes or call.attrs.keepdims or in_order:
        return reduced, not in_order
    last = rank - len(axes) - 1
    return relax.op.permute_dims(rewriter.emit(reduced), [last, *range(last)]), False


def _reshape(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """What keeps the batch and the channels, and only writes space as more or fewer dimensions."""
    data = call.args[0]
    shape, source = shape_of(call), shape_of(data)
    if shape is None or source is None or min(len(shape), len(source)) < 2 or not same_shape(source[:2], shape[:2]):
        return None
    if not rewriter.is_last(data) and not (len(source) == 2 and len(shape) > 2):
        return None
    value = rewriter.last[data] if rewriter.is_last(data) else rewriter.new(data)
    return relax.op.reshape(value, relax.ShapeExpr([shape[0], *shape[2:], shape[1]])), len(shape) > 2


def _permute_dims(rewriter: _ChannelsLast, call: relax.Call) -> Answer:
    """What moves the channels to the end is done already; what moves them from there is not done yet."""
    data, axes, rank = call.args[0], permutation(call), len(dims(call))
    if rewriter.is_last(data):
        places = [_place(axis, rank) for axis in axes]
        value = rewriter.moved(data)
        return (value if places == sorted(places) else relax.op.permute_dims(value, places)), False
    if rank > 2 and axes == [0, rank - 1, *range(1, rank - 1)] and isinstance(data, relax.Var):
        return rewriter.new(data), True
    return None


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


_RULES: dict[str, Callable[[_ChannelsLast, Any], Answer]] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(_names("nn.conv1d_transpose nn.conv2d_transpose"), _transposed),
    **dict.fromkeys(CONVOLUTION_GRADIENTS, _weight_gradient),
    **dict.fromkeys(_names("grad.avg_pool2d_backward grad.max_pool2d_backward"), _together),
    **dict.fromkeys(ELEMENTWISE - _names("nn.prelu nn.seeded_dropout nn.stochastic_round"), _elementwise),
    **dict.fromkeys(
        _names("""
        astype equal greater greater_equal isfinite isinf isnan less less_equal logical_and logical_not logical_or
        logical_xor not_equal where
        """),
        _elementwise,
    ),
    **dict.fromkeys(_names("max mean min prod std sum variance"), _reduction),
    **dict.fromkeys(
        _names("""
        concat image.resize2d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.avg_pool1d nn.avg_pool2d nn.group_norm
        nn.log_softmax nn.max_pool1d nn.max_pool2d nn.pad nn.prelu nn.softmax split
        """),
        _same,
    ),
    "relax.strided_slice": _slice,
    "relax.reshape": _reshape,
    "relax.permute_dims": _permute_dims,
    "item": _item,
}

_LAYOUTS = {"NCW": "NWC", "NCHW": "NHWC"}


def _name(value: relax.Expr) -> str:
    return "item" if isinstance(value, relax.TupleGetItem) else op_name(value) or ""


def _order(rank: int) -> list[int]:
    """The permutation that moves axis 1 to the end."""
    return [0, *range(2, rank), 1]


def _place(axis: int, rank: int) -> int:
    """Where `axis` is once axis 1 has moved to the end."""
    return _order(rank).index(axis % rank)


def _with_channels_last(value: relax.Expr) -> relax.Call:
    shape = dims(value)
    if _is_one(shape[1]):
        return relax.op.reshape(value, relax.ShapeExpr([shape[axis] for axis in _order(len(shape))]))
    return relax.op.permute_dims(value, _order(len(shape)))


def _moved_back(value: relax.Expr) -> relax.Expr:
    if isinstance(value.ty, tvm.ir.TupleType):
        ranks = [len(ty.shape) for ty in value.ty.fields]
        fields = (relax.TupleGetItem(value, i) for i in range(len(ranks)))
        return relax.Tuple([relax.op.permute_dims(x, _back(rank)) for x, rank in zip(fields, ranks, strict=True)])
    return relax.op.permute_dims(value, _back(len(dims(value))))


def _back(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _is_one(dim: object) -> bool:
    return isinstance(dim, int) and dim == 1


def _moved_axes(axes: Any, rank: int) -> Any:
    if axes is None:
        return None
    return sorted(_place(int(axis), rank) for axis in axes) if isinstance(axes, Sequence) else _place(int(axes), rank)


def _moved_layout(layout: str, rank: int) -> str:
    return _LAYOUTS.get(str(layout), str(layout))


def _moved_widths(widths: Any, rank: int) -> list[int]:
    return [int(widths[2 * axis + side]) for axis in _order(rank) for side in (0, 1)]


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


def _moved_attributes(call: relax.Call, rank: int) -> tvm.ir.Attrs:
    names = [field.name for field in type(call.attrs).__tvm_ffi_type_info__.fields]
    values = {name: getattr(call.attrs, name) for name in names}
    moved = {name: move(values[name], rank) for name, move in _ATTRIBUTES.items() if name in values}
    return type(call.attrs)(**{**values, **moved})


def channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute convolutions, and what is between them, on data whose channels are the last axis.

    Before::                                    After::

        c = R.nn.conv2d(x, w)                       a = R.permute_dims(x, [0, 2, 3, 1])
        b = R.reshape(bias, [1, 8, 1, 1])           c = R.nn.conv2d(a, w, data_layout="NHWC", out_layout="NHWC")
        y = R.add(c, b)                             y = R.add(c, bias)
        p = R.mean(y, axis=[2, 3])                  p = R.mean(y, axis=[1, 2])

    Each value is moved at most once in each direction, where something first asks for it. Transpositions of the
    model's own that do the same, such as those around layer_norm, vanish. Convolutions whose windows tile their
    data, where the data is not in this form yet, become products.
    """
    return canonicalize(rewrite_functions(mod, _ChannelsLast))
