"""Multiply integers, exactly, by kernels of floating-point numbers, which are those that vector units are fast at.

Quantized models multiply integers of 8 bits, less the integer that stands for zero. A sum of their products is an
integer, and as long as none is above 2^24 a sum in float32 has no error, in whatever order. bfloat16 holds all integers
up to 256. Sums of too many products are cut, and the parts added as integers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, dims, dtype_of, is_op, relax_functions, shape_of, static_shape
from autocast.ir.ranges import range_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.explain import explain
from autocast.kernels.phases.widen import with_result

op = relax.op

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_PRODUCTS = ("relax.matmul", *_CONVOLUTIONS)

#: Up to which magnitude a dtype holds all integers, and sums of its products do.
_EXACT: Mapping[str, tuple[int, int]] = {
    "bfloat16": (2**8, 2**24),
    "float32": (2**24, 2**24),
    "float64": (2**53, 2**53),
}

#: Parts are of so many terms, or multiples of that, where they may be as long: whole vectors.
_VECTOR = 32

#: No sum of int32 that does not wrap around has more terms.
_MOST_TERMS = 2**31


@dataclass(frozen=True)
class _Parts:
    """How products of integers are summed: as `dtype`, in parts that end at these places along the summed axis."""

    dtype: str
    ends: tuple[int, ...]


@mutator
class _MultiplyIntegers(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, dtypes: Collection[str]) -> None:
        super().__init__(mod)
        self.dtypes = dtypes

    def enter(self, function: relax.Function) -> None:
        #: Sums that are in floating point, by the variables that were integers.
        self.whole: dict[relax.Var, relax.Var] = {}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if is_op(call, "relax.astype") and call.args[0] in self.whole and dtype_of(call) == "float32":
            whole = self.whole[call.args[0]]
            return whole if dtype_of(whole) == "float32" else op.astype(whole, "float32")
        if not _multiplies_integers(call):
            return None
        parts = self.parts(call)
        if parts is None:
            explain("integers", binding.var, "its sums may be inexact", taken=False)
            return None
        explain("integers", binding.var, f"in {len(parts.ends)} parts of {parts.dtype}", taken=True)
        to = "float64" if parts.dtype == "float64" else "float32"
        sums = [self.emit(with_result(call, list(operands), to)) for operands in self.cut(call, parts)]
        holds_all = int(np.iinfo(str(dtype_of(call))).max) >= _EXACT[parts.dtype][1]
        if len(sums) == 1 and holds_all and isinstance(binding.var, relax.DataflowVar):
            # Rounding changes no integer, but what multiplies the sums stays out of the factors that have to be exact.
            self.whole[binding.var] = self.emit(op.round(sums[0]))
        # Integers that hold each part, and whose sum wraps around as one of the result's dtype does.
        integers = "int64" if to == "float64" or "64" in str(dtype_of(call)) else "int32"
        total, *others = (self.emit(op.astype(part, integers)) for part in sums)
        for other in others:
            total = self.emit(op.add(total, other))
        return total if dtype_of(total) == dtype_of(call) else op.astype(total, dtype_of(call))

    def parts(self, call: relax.Call) -> _Parts | None:
        """The first of `dtypes` in which sums are exact, and how long they may be; None where there is none."""
        ranges = [range_of(operand, self.values) for operand in call.args]
        if None in ranges or not _is_plain(call):
            return None
        largest = [found.magnitude for found in ranges if found is not None]
        summed, each = _summed(call)
        for dtype in self.dtypes:
            most, most_sum = _EXACT[dtype]
            terms = most_sum // max(1, math.prod(largest)) // each
            if max(largest) > most or terms < 1:
                continue
            if not isinstance(summed, int):
                if terms >= _MOST_TERMS:
                    return _Parts(dtype, (-1,))
                continue
            size = math.ceil(summed / math.ceil(summed / terms))
            size = min(terms, math.ceil(size / _VECTOR) * _VECTOR)
            return _Parts(dtype, (*range(size, summed, size), summed))
        return None

    def cut(self, call: relax.Call, parts: _Parts) -> Iterator[tuple[relax.Expr, relax.Expr]]:
        """The operands of each part, in its dtype."""
        left, right = (self.emit(op.astype(self.new(operand), parts.dtype)) for operand in call.args)
        if len(parts.ends) == 1:
            yield left, right
            return
        groups = 1 if is_op(call, "relax.matmul") else int(call.attrs.groups)
        of_left, of_right = _axes(call)
        begin = 0
        for end in parts.ends:
            yield self.part(left, of_left, groups, begin, end), self.part(right, of_right, 1, begin, end)
            begin = end

    def part(self, whole: relax.Expr, axis: int, groups: int, begin: int, end: int) -> relax.Expr:
        """Of each of the groups along an axis, what is from `begin` to `end`."""
        if groups == 1:
            return self.emit(op.strided_slice(whole, [axis], [begin], [end]))
        before, size, after = dims(whole)[:axis], dims(whole)[axis], dims(whole)[axis + 1 :]
        apart = self.emit(op.reshape(whole, [*before, groups, size // groups, *after]))
        cut = self.emit(op.strided_slice(apart, [axis + 1], [begin], [end]))
        return self.emit(op.reshape(cut, [*before, groups * (end - begin), *after]))


def _multiplies_integers(call: relax.Expr) -> bool:
    return is_op(call, *_PRODUCTS) and all("int" in str(dtype_of(tensor)) for tensor in (*call.args, call))


def _is_plain(call: relax.Call) -> bool:
    """Whether the sizes that matter are known and where operators of the model have them: channels first."""
    if is_op(call, "relax.matmul"):
        return all(shape_of(operand) is not None and 0 not in dims(operand) for operand in call.args)
    layouts = str(call.attrs.data_layout)[:2], str(call.attrs.kernel_layout)[:2]
    data, weights = shape_of(call.args[0]), static_shape(call.args[1])
    if data is None or weights is None:
        return False
    return layouts == ("NC", "OI") and 0 not in (*data, *weights)


def _summed(call: relax.Call) -> tuple[int | tvm.ir.PrimExpr, int]:
    """The extent of the axis that may be cut, and how many products each element along it is in."""
    if is_op(call, "relax.matmul"):
        return dims(call.args[0])[-1], 1
    _, channels, *taps = dims(call.args[1])
    return channels, math.prod(taps)


def _axes(call: relax.Call) -> tuple[int, int]:
    """The axis that is summed, in each operand."""
    if is_op(call, "relax.matmul"):
        ranks = [len(dims(operand)) for operand in call.args]
        return ranks[0] - 1, max(ranks[1] - 2, 0)
    return 1, 1


def multiply_integers(mod: tvm.IRModule, dtypes: Collection[str]) -> tvm.IRModule:
    """Rewrite products and convolutions of integers to those of floating-point numbers, of the first dtype that does.

    Before::                                     After, where `a` and `b` are of 8 bits less a zero of 8 bits::

        c: i32 = R.matmul(a, b)                      x: bf16 = R.astype(a, "bfloat16")
        r: f32 = R.astype(c, "float32")              y: bf16 = R.astype(b, "bfloat16")
                                                     r: f32 = R.round(R.matmul(x, y, out_dtype="float32"))

    Products of so many terms that a sum may be above 2^24 (2^53 in float64) are cut, and integers are added. Those of
    numbers that may be too large, which `range_of` decides, stay as they are.

    Parameters
    ----------
    dtypes
        `bfloat16`, `float32` and `float64`: what is multiplied fast, the best first.
    """
    bindings = (binding for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    if not any(_multiplies_integers(binding.value) for binding in bindings):
        return mod
    return rewrite_functions(mod, _MultiplyIntegers, dtypes)
