"""Replace operators of our own, and those that TVM cannot compute, by operators of TVM that they are short for."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, dtype_of, op_name
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.phases import searching
from autocast.kernels.phases.boxes import suppress_each_class
from autocast.kernels.phases.quantized import rounded
from autocast.kernels.phases.searching import Emit
from autocast.kernels.phases.sequences import part_sequences
from autocast.kernels.storage import LOW
from autocast.operators.own import OPERATORS, Expansion


def _pixel_shuffle(_: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr:
    factor, (*batch, channels, height, width) = int(call.attrs.upscale_factor), dims(x)
    first = len(batch)
    parts = relax.op.reshape(x, [*batch, channels // factor**2, factor, factor, height, width])
    order = [*range(first + 1), first + 3, first + 1, first + 4, first + 2]
    return relax.op.reshape(
        relax.op.permute_dims(parts, order), [*batch, channels // factor**2, height * factor, width * factor]
    )


def _prelu(_: Emit, call: relax.Call, x: relax.Expr, alpha: relax.Expr) -> relax.Expr:
    axis = int(call.attrs.axis) % len(dims(x))
    factor = relax.op.reshape(alpha, [dims(alpha)[0] if i == axis else 1 for i in range(len(dims(x)))])
    positive = relax.op.greater(x, relax.const(0, dtype_of(x)))
    return relax.op.where(positive, x, relax.op.multiply(x, factor))


def _quantize(emit: Emit, call: relax.Call, x: relax.Expr, scale: relax.Expr, zero: relax.Expr) -> relax.Expr | None:
    steps = rounded(emit, call, x, scale, zero)
    return None if steps is None else relax.op.astype(steps, str(call.attrs.out_dtype))


def _matmul(_: Emit, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr | None:
    """Truth values are counted, as TVM adds none; a sum in float64 is one of numbers in float64."""
    dtype = dtype_of(call)
    wide = {"bool": "int32", "float64": "float64"}.get(str(dtype))
    if wide is None or wide == dtype_of(x):
        return None
    product = relax.op.matmul(relax.op.astype(x, wide), relax.op.astype(y, wide))
    return relax.op.astype(product, dtype) if dtype != wide else product


def _one_hot(_: Emit, call: relax.Call, *operands: relax.Expr) -> relax.Expr | None:
    """TVM counts the axis from the end of the indices, which have one less."""
    axis = int(call.attrs.axis)
    return relax.op.one_hot(*operands, int(call.attrs.depth), axis + call.ty.ndim) if axis < -1 else None


def _reduced(_: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Along no axis, each element is its own sum; what it varies by is what it differs from itself."""
    if call.attrs.axis is None or len(call.attrs.axis):
        return None
    return relax.op.subtract(x, x) if op_name(call) in ("relax.variance", "relax.std") else x


def _view(_: Emit, call: relax.Call, *operands: relax.Expr) -> relax.Expr | None:
    """A view that kernels take: they expect tensors to begin where their memory does."""
    offset = call.args[3]
    if isinstance(offset, relax.Tuple) or (isinstance(offset, tirx.IntImm) and int(offset) == 0):
        return None
    return relax.op.memory.ensure_zero_offset(call)


#: Operators that TVM has a type for, but nothing that computes them rightly, or not all of them.
_UNKNOWN_TO_TVM: dict[str, Callable[..., relax.Expr | None]] = {
    "relax.matmul": _matmul,
    "relax.memory.view": _view,
    "relax.one_hot": _one_hot,
    **dict.fromkeys((f"relax.{name}" for name in ("sum", "mean", "prod", "max", "min", "variance", "std")), _reduced),
    "relax.ewise_fma": lambda _, call, x, y, z: relax.op.add(relax.op.multiply(x, y), z),
    "relax.nn.attention_var_len": part_sequences,
    "relax.nn.prelu": _prelu,
    "relax.nn.pixel_shuffle": _pixel_shuffle,
    "relax.quantize": _quantize,
    "relax.wrap_param": lambda _, call, x: relax.op.astype(x, call.attrs.dtype),
    "relax.hint_on_device": lambda _, call, x: x,
    "relax.builtin.stop_lift_params": lambda _, call, x: x,
    "relax.vision.all_class_non_max_suppression": suppress_each_class,
    "relax.sort": searching.sort,
    "relax.argsort": searching.argsort,
    "relax.median": searching.median,
    "relax.topk": searching.topk,
    "relax.scatter_elements": searching.scatter,
    "relax.scatter_nd": searching.scatter,
}


@mutator
class _Expand(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, keep: Callable[[relax.Call], bool]) -> None:
        super().__init__(mod)
        self.keep = keep

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        name = op_name(binding.value)
        if name is None or self.keep(binding.value):
            return None
        if name in _UNKNOWN_TO_TVM:
            return _UNKNOWN_TO_TVM[name](self.emit, binding.value, *map(self.new, binding.value.args))
        operator = OPERATORS.get(name)
        if operator is None or operator.expand is None:
            return None
        call = binding.value
        operands = [self.new(operand) for operand in call.args]
        if not operator.multiplies:
            operands = [self.widened(operand) for operand in operands]
        result = operator.expand(Expansion(call, tuple(operands), self.emit))
        if isinstance(result, relax.Expr):
            return self.stored(result, call.ty)
        fields = zip(result, call.ty.fields, strict=True)
        return relax.Tuple([self.emit(self.stored(field, want)) for field, want in fields])

    def widened(self, operand: relax.Expr) -> relax.Expr:
        """`operand` in float32 where it is stored lower."""
        return self.emit(relax.op.astype(operand, "float32")) if dtype_of(operand) in LOW else operand

    def stored(self, result: relax.Expr, want: relax.TensorType) -> relax.Expr:
        """`result` in the dtype of the type `want`."""
        result = self.builder_.normalize(result)
        return result if dtype_of(result) == str(want.dtype) else relax.op.astype(result, str(want.dtype))


def expand_operators(mod: tvm.IRModule, keep: Callable[[relax.Call], bool] = lambda _: False) -> tvm.IRModule:
    """Rewrite backward operators and losses to operators of TVM, which compute in float32 and store as was asked.

    Before::                                               After::

        d: bf16 = R.grad.tanh_backward(y, g)                   y1: f32 = R.astype(y, "float32")
                                                               g1: f32 = R.astype(g, "float32")
                                                               s: f32 = R.subtract(1, R.multiply(y1, y1))
                                                               d: bf16 = R.astype(R.multiply(g1, s), "bfloat16")

    So are the few operators of TVM that it cannot compute itself. Calls of which `keep` is true stay as they are.
    """
    return rewrite_functions(mod, _Expand, keep)
