"""Slices by places that are known at run time: none has fewer than 0 elements."""

from __future__ import annotations

from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, dims, is_op, relax_functions, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions

#: A place or an extent: known now, or at run time.
Number: TypeAlias = Any


def keep_sizes_of_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """Let slices that might end before they begin end where they begin.

    Before::                                        After::

        # of n elements: min(n - 3, n) - min(5, n)      # 0 where n - 3 <= 5
        y = R.strided_slice(x, (0,), (5,), (-3,))       y = R.strided_slice(x, (0,), (5,), (Select(n - 3 > 5, -3, 5),))

    TVM gives the first a size below 0 where n is 7.
    """
    values = [binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body)]
    return rewrite_functions(mod, _EndsAfterBegins) if any(map(_may_end_before, values)) else mod


def may_end_before(function: relax.Function) -> bool:
    """Whether a function has slices that might end before they begin: TVM's types of what follows may be wrong."""
    return any(_may_end_before(binding.value) for binding in all_bindings(function.body))


def _may_end_before(value: relax.Expr) -> bool:
    """Whether `value` is a slice whose size TVM cannot prove to be no less than 0."""
    if not is_op(value, "relax.strided_slice") or value.attrs.assume_inbound or shape_of(value) is None:
        return False
    if not all(isinstance(argument, relax.Tuple) for argument in value.args[1:]):
        return False
    steps = value.args[4].fields if len(value.args) > 4 else ()
    sizes = [dims(value)[int(axis)] for axis in value.args[1].fields]
    return all(isinstance(step, int | tirx.IntImm) for step in steps) and not all(map(_is_no_less_than_0, sizes))


def _is_no_less_than_0(size: Number) -> bool:
    if isinstance(size, int):
        return size >= 0
    analyzer = tvm.sym.Analyzer()
    for extent in tirx.analysis.undefined_vars(size):
        analyzer.update(extent, tvm.sym.ConstIntBound(0, tvm.sym.ConstIntBound.POS_INF))
    return analyzer.can_prove(size >= 0)


@mutator
class _EndsAfterBegins(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not _may_end_before(call):
            return None
        x, axes, begins, ends, *steps = call.args
        x = self.new(x)
        numbers = [int(step) for step in steps[0].fields] if steps else [1] * len(axes.fields)
        places = zip(axes.fields, begins.fields, ends.fields, numbers, strict=True)
        ends = [_end(begin, end, step, dims(x)[int(axis)]) for axis, begin, end, step in places]
        return relax.Call(call.op, [x, axes, begins, relax.Tuple(ends), *steps], call.attrs)


def _end(begin: Number, end: Number, step: int, extent: Number) -> Number:
    """Where a slice ends; where that is before it begins, where it begins."""
    extent = tirx.convert(extent).astype("int64")
    if step > 0:
        return tirx.max(_from_start(end, extent, 0), _from_start(begin, extent, 0))
    last = tirx.min(_from_start(end, extent, -1), _from_start(begin, extent, -1))
    # Backwards, a slice may end before the first element: no number says that but one that is counted from the end.
    return tirx.Select(last < 0, -1 - extent, last)


def _from_start(place: Number, extent: Number, first: int) -> Number:
    """A place, counted from the start and within the axis."""
    place = tirx.convert(place).astype("int64")
    place = tirx.Select(place < 0, place + extent, place)
    return tirx.max(tirx.min(place, extent + first), first)
