"""Keep what looks elements up by number within its tensors: numbers come from data, and TVM looks at none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, dtype_of, op_name
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.fallback.scattering import scattered

op = relax.op


def _from_start(place: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    """Counted from the start where it was from the end, and then the nearest that there is."""
    place = tirx.Select(place < 0, place + extent, place)
    return tirx.max(tirx.min(place, extent - 1), tirx.const(0, "int64"))


def _places(places: te.Tensor, extents: Sequence[Any]) -> te.Tensor:
    """Places along one axis; along several, a column of `places` for each."""

    def within(*at: tirx.Var) -> tirx.Expr:
        column = at[-1] if at else 0
        return _from_start(places(*at).astype("int64"), _chosen(column, extents))

    return te.compute(places.shape, within, name="places")


def _taken(x: te.Tensor, places: te.Tensor, axis: int, wraps: bool) -> te.Tensor:
    """Rows of x, the nearest or around the end where a place is beyond it; 0 where x has none."""
    extent = tirx.convert(x.shape[axis]).astype("int64")
    rank = len(places.shape)

    def element(*at: tirx.Var) -> tirx.Expr:
        before, which, after = at[:axis], at[axis : axis + rank], at[axis + rank :]
        place = places(*which).astype("int64")
        last = extent - 1
        near = tirx.floormod(place, tirx.max(extent, 1)) if wraps else tirx.max(tirx.min(place, last), 0)
        return tirx.if_then_else(extent > 0, x(*before, near, *after), tirx.const(0, x.dtype))

    return te.compute((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]), element, name="taken")


def _images(rois: te.Tensor, extent: Any) -> te.Tensor:
    """Regions (image, corners...) of images that there are; NaN is the first of them."""

    def within(*at: tirx.Var) -> tirx.Expr:
        value = rois(*at)
        last = tirx.convert(extent - 1).astype(value.ty.dtype)
        image = tirx.Select(value > 0, tirx.min(value, last), tirx.const(0, value.ty.dtype))
        return tirx.Select(at[-1] == 0, image, value)

    return te.compute(rois.shape, within, name="images")


def _steps(steps: te.Tensor) -> te.Tensor:
    """Steps that lead somewhere."""
    return te.compute(
        steps.shape, lambda at: tirx.Select(steps(at) == 0, tirx.const(1, "int64"), steps(at)), name="steps"
    )


def _ends(begins: te.Tensor, ends: te.Tensor, steps: te.Tensor, extents: Sequence[Any]) -> te.Tensor:
    """The ends of slices; where one lies before its begin, it is that begin."""

    def end(at: tirx.Var) -> tirx.Expr:
        extent = _chosen(at, extents)
        first = tirx.Select(steps(at) < 0, tirx.const(-1, "int64"), tirx.const(0, "int64"))

        def place(bound: tirx.Expr) -> tirx.Expr:
            return tirx.max(tirx.min(tirx.Select(bound < 0, bound + extent, bound), extent + first), first)

        ahead = place(ends(at)) - place(begins(at))
        return tirx.Select(tirx.Select(steps(at) < 0, -ahead, ahead) > 0, ends(at), begins(at))

    return te.compute(ends.shape, end, name="ends")


def _chosen(at: tirx.Expr | int, extents: Sequence[Any]) -> tirx.Expr:
    """The extent of number `at`."""
    *others, extent = (tirx.convert(size).astype("int64") for size in extents)
    for number, other in enumerate(others):
        extent = tirx.Select(at == number, other, extent)
    return extent


@mutator
class _WithinTensors(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        rule = _RULES.get(op_name(call) or "")
        return None if rule is None else rule(self, call, *map(self.new, call.args))

    def within(self, places: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
        return self.emit(self.builder_.call_te(_places, places, list(extents)))

    def with_places(self, call: relax.Call, places: relax.Expr, operands: Sequence[relax.Expr]) -> relax.Expr:
        """The call of (data, places, others...) with other places."""
        data, _, *others = operands
        return relax.Call(call.op, [data, places, *others], call.attrs)


def _along_an_axis(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    extent = dims(operands[0])[int(call.attrs.axis)]
    return rewriter.with_places(call, rewriter.within(operands[1], [extent]), operands)


def _scatter(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    data, places, updates = operands
    axis = int(call.attrs.axis) % len(dims(data))
    within = rewriter.within(places, [dims(data)[axis]])
    return rewriter.builder_.call_te(scattered, data, within, updates, axis, str(call.attrs.reduction))


def _along_columns(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    first = int(call.attrs.batch_dims) if op_name(call) == "relax.gather_nd" else 0
    extents = dims(operands[0])[first : first + int(dims(operands[1])[-1])]
    return rewriter.with_places(call, rewriter.within(operands[1], extents), operands)


def _along_each_axis(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    pairs = zip(operands[1].fields, dims(operands[0]), strict=False)
    places = relax.Tuple([rewriter.within(place, [extent]) for place, extent in pairs])
    return rewriter.with_places(call, places, operands)


def _lookup(rewriter: _WithinTensors, call: relax.Call, x: relax.Expr, places: relax.Expr) -> relax.Expr | None:
    """take, where it promises nothing of places that are out of range: the nearest. NaN there needs an axis in TVM."""
    mode = str(call.attrs.mode)
    if mode == "nan" and call.attrs.axis is None:
        return op.take(x, places, 0, mode)
    axis = int(call.attrs.axis or 0) % len(dims(x))
    if mode != "nan" and not isinstance(dims(x)[axis], int):
        return rewriter.builder_.call_te(_taken, x, places, axis, mode == "wrap")
    return op.take(x, places, call.attrs.axis, "clip") if mode == "fast" else None


def _loss(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    """0 where the target, to be ignored or not, is no class: TVM reads its element before it asks."""
    targets = operands[1]
    classes = rewriter.within(targets, [dims(operands[0])[1 if len(dims(operands[0])) > 1 else 0]])
    losses = rewriter.emit(rewriter.with_places(call, classes, operands))
    is_class = rewriter.emit(op.equal(classes, rewriter.emit(op.astype(targets, "int64"))))
    return op.where(is_class, losses, relax.const(0.0, dtype_of(call)))


def _regions(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    rois = rewriter.emit(rewriter.builder_.call_te(_images, operands[1], dims(operands[0])[0]))
    return rewriter.with_places(call, rois, operands)


def _slice(rewriter: _WithinTensors, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    """A step of 0, by which TVM divides, is one of 1; what ends before it begins is empty, and not of negative size."""
    x, begins, ends, steps = operands
    call_te = rewriter.builder_.call_te
    steps = rewriter.emit(call_te(_steps, steps))
    ends = rewriter.emit(call_te(_ends, begins, ends, steps, dims(x)))
    return relax.Call(call.op, [x, begins, ends, steps], call.attrs)


_RULES: dict[str, Callable[..., relax.Expr | None]] = {
    "relax.take": _lookup,
    "relax.dynamic_strided_slice": _slice,
    "relax.gather_elements": _along_an_axis,
    "relax.scatter_elements": _scatter,
    "relax.gather_nd": _along_columns,
    "relax.scatter_nd": _along_columns,
    "relax.index_tensor": _along_each_axis,
    "relax.index_put": _along_each_axis,
    "relax.nn.nll_loss": _loss,
    "relax.vision.roi_align": _regions,
    "relax.vision.roi_pool": _regions,
}


def keep_within_tensors(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite lookups that no kernel took to those of places that there are: beyond an end, the nearest.

    Before::                                     After::

        b = R.gather_elements(a, i, axis=1)          j = R.call_tir(places, (i,))
                                                     b = R.gather_elements(a, j, axis=1)
    """
    return rewrite_functions(mod, _WithinTensors)
