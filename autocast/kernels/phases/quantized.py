"""Numbers of few bits with a scale and a zero, in float32: nothing is stored as an integer on the way.

A quantized model rounds a tensor to integers of 8 bits (`quantize`), and what reads it makes real numbers of them again
(`dequantize`), or subtracts the zero and multiplies integers (`integers`). Of such a pair float32 holds every step
exactly, so it becomes arithmetic that kernels apply to what they compute anyway.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, all_bindings, dims, dtype_of, is_op, relax_functions, shape_of
from autocast.ir.ranges import never_wraps, range_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.phases.searching import Emit

op = relax.op

#: float32 holds all integers up to this one.
_EXACT = 2**24

_ARITHMETIC = ("relax.add", "relax.multiply", "relax.subtract")


def rounded(emit: Emit, call: relax.Call, x: relax.Expr, scale: relax.Expr, zero: relax.Expr) -> relax.Expr | None:
    """The integers that a `quantize` answers, in float32; None where it answers other numbers."""
    dtype = str(call.attrs.out_dtype)
    if "int" not in dtype or shape_of(x) is None:
        return None
    along = [_along_axis(parameter, int(call.attrs.axis), len(dims(x))) for parameter in (scale, zero)]
    steps = op.round(op.divide(emit(op.astype(x, "float32")), along[0]))
    bounds = np.iinfo(dtype)
    return op.clip(op.add(steps, along[1]), int(bounds.min), int(bounds.max))


def _along_axis(parameter: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """A scale or a zero, of all elements or of each along an axis of a tensor, in float32."""
    wide = op.astype(parameter, "float32")
    if not dims(parameter):
        return wide
    return op.reshape(wide, [dims(parameter)[0] if i == axis % rank else 1 for i in range(rank)])


@mutator
class _InFloat32(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        self.found: dict[relax.Expr, relax.Expr | None] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        result = super().visit_dataflow_block_(block)
        self.found.clear()  # a block's inner variables are not known outside
        return result

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if is_op(call, "relax.take") and (row := self.row_of_quantized(call)) is not None:
            return row
        if is_op(call, "relax.dequantize") and shape_of(call.args[0]) is not None:
            return self.real(call, call.args[0], len(dims(call)))
        if not _makes_real(call) or not self.is_computed(call.args[0]):
            return None
        steps = self.in_float32(call.args[0])
        return None if steps is None else op.astype(steps, dtype_of(call))

    def real(self, call: relax.Call, x: relax.Expr, rank: int) -> relax.Expr | None:
        """What a `dequantize` makes of the integers `x`, of so many dimensions."""
        steps, zero = self.in_float32(x), self.in_float32(call.args[2])
        if steps is None or zero is None or dtype_of(call) not in FLOATS:
            return None
        left, right = (
            _along_axis(parameter, int(call.attrs.axis), rank) for parameter in (zero, self.new(call.args[1]))
        )
        number = op.multiply(op.subtract(steps, left), right)
        if dtype_of(call) == "float16":
            number = op.clip(number, -65504.0, 65504.0)
        return number if dtype_of(call) == "float32" else op.astype(number, dtype_of(call))

    def row_of_quantized(self, call: relax.Call) -> relax.Expr | None:
        """Rows of a table as real numbers, without those of the rest of the table."""
        table = self.values.get(call.args[0], call.args[0])
        if not is_op(table, "relax.dequantize") or any(shape_of(x) not in ((), (1,)) for x in table.args[1:]):
            return None
        rows = self.emit(relax.Call(call.op, [self.new(table.args[0]), *map(self.new, call.args[1:])], call.attrs))
        return self.real(table, rows, len(dims(rows)))

    def is_computed(self, expr: relax.Expr) -> bool:
        """Whether integers are the result of arithmetic of our own, and not just stored."""
        value = self.values.get(expr, expr)
        if is_op(value, "relax.astype"):
            return self.is_computed(value.args[0])
        return is_op(value, "relax.quantize", *_ARITHMETIC)

    def in_float32(self, expr: relax.Expr) -> relax.Expr | None:
        """Integers in float32; None where that does not hold them all."""
        found = range_of(expr, self.values)
        if found is None or found.magnitude > _EXACT:
            return None
        if expr not in self.found:
            self.found[expr] = self.computed_in_float32(expr)
        return self.found[expr]

    def computed_in_float32(self, expr: relax.Expr) -> relax.Expr:
        value = self.values.get(expr, expr)
        if is_op(value, "relax.quantize"):
            steps = rounded(self.emit, value, *map(self.new, value.args))
            if steps is not None:
                return self.emit(steps)
        parts: list[relax.Expr | None] = []
        if is_op(value, "relax.astype", *_ARITHMETIC) and never_wraps(expr, self.values):
            parts = [self.in_float32(part) for part in value.args]
        if not parts or None in parts:
            return self.emit(op.astype(self.new(expr), "float32"))
        return parts[0] if len(parts) == 1 else self.emit(relax.Call(value.op, parts, value.attrs))


def _makes_real(call: relax.Expr) -> bool:
    """Whether integers become floating-point numbers."""
    if is_op(call, "relax.astype"):
        return dtype_of(call) in FLOATS and "int" in str(dtype_of(call.args[0]))
    return is_op(call, "relax.dequantize")


def quantized_in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite what is computed of quantized numbers to arithmetic in float32, where that is exact.

    Before::                                             After::

        q: i8 = R.quantize(x, scale, zero)                   s: f32 = R.clip(R.round(x / scale) + zero, -128, 127)
        y: f32 = R.dequantize(q, scale, zero)                y: f32 = (s - zero) * scale

    What has not to be an integer of the model's stays a float32 number: a NaN is no integer, and stays NaN.
    """
    bindings = (binding for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    if not any(_makes_real(binding.value) for binding in bindings):
        return mod
    return rewrite_functions(mod, _InFloat32)
