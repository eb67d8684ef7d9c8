"""Integers of 32 and 64 bits that wrap around, as torch's and numpy's do.

TVM and LLVM take it for granted that they do not, unsigned ones neither: in one kernel `x + 1 > x` would be true, and
the sum of a product of int32 that of one of int64. What may come to more than a dtype holds is computed in int64, or by
halves, and its result is nothing that TVM knows about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax, te, tirx

from autocast.ir import dims, dtype_of, is_constant, is_op, op_name, shape_of
from autocast.ir.ranges import never_wraps

#: The lower half of 64 bits, and how many bits it has.
_LOW, _HALF = tirx.const(2**32 - 1, "uint64"), tirx.const(32, "uint64")

#: Integers of the sizes of TVM's own, and arithmetic that may come to more than they hold.
_DTYPES = ("int32", "int64", "uint32", "uint64")
_ARITHMETIC = tuple(f"relax.{name}" for name in ("abs", "add", "multiply", "negative", "subtract"))


def may_wrap(binding: relax.VarBinding, values: Mapping[relax.Var, relax.Expr]) -> bool:
    """Whether a binding computes integers of the sizes of TVM's own, which may be too large."""
    of_integers = is_op(binding.value, *_ARITHMETIC) and dtype_of(binding.var) in _DTYPES
    return of_integers and shape_of(binding.var) is not None and not never_wraps(binding.var, values)


def wrapping(builder: relax.BlockBuilder, call: relax.Call, *operands: relax.Expr) -> relax.Expr | None:
    """The same, computed in twice as many bits or by halves; None where nothing varies."""
    given = [int(one.value.numpy()) if is_constant(one) and not dims(one) else one for one in operands]
    if all(isinstance(one, int) for one in given):
        return None
    name = str(op_name(call)).removeprefix("relax.")
    return builder.call_te(_wrapped, name, str(dtype_of(call)), *given, primfunc_name_hint=name)


def _wrapped(name: str, dtype: str, *operands: te.Tensor | int) -> te.Tensor:
    """Arithmetic of integers modulo two to the power of their bits."""
    shape = _broadcast([operand.shape for operand in operands if not isinstance(operand, int)])

    def of(operand: te.Tensor | int, at: Sequence[tirx.Expr]) -> tirx.Expr:
        if isinstance(operand, int):
            return tirx.const(operand, dtype)
        rank = len(operand.shape)
        places = [0 if _is_one(size) else i for size, i in zip(operand.shape, at[len(at) - rank :], strict=True)]
        return operand(*places)

    def element(*at: tirx.Var) -> tirx.Expr:
        x, *others = (of(operand, at) for operand in operands)
        if others:
            return _modulo(name, x, others[0])
        opposite = _modulo("subtract", tirx.const(0, dtype), x)
        if name == "abs":
            return x if dtype.startswith("u") else tirx.Select(x < 0, opposite, x)
        return opposite

    return te.compute(shape, element, name="wrapped")


def _modulo(name: str, x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    dtype = str(x.ty.dtype)
    if dtype == "int32":
        x, y = (_unknown(operand.astype("int64")) for operand in (x, y))
        return _unknown({"add": x + y, "subtract": x - y, "multiply": x * y}[name].astype(dtype))
    if dtype == "uint32":
        x, y = (_unknown(operand.astype("uint64")) for operand in (x, y))
        result = x * y if name == "multiply" else x + (y if name == "add" else tirx.const(2**32, "uint64") - y)
        return _unknown((result & _LOW).astype(dtype))
    low, high = _halves(x)
    other_low, other_high = _halves(y)
    if name == "multiply":
        product = low * other_low
        low, high = product & _LOW, (product >> _HALF) + ((low * other_high) & _LOW) + ((high * other_low) & _LOW)
    else:
        if name == "subtract":  # plus what is not in y, and 1
            other_low, other_high = (other_low ^ _LOW) + tirx.const(1, "uint64"), other_high ^ _LOW
        low, high = low + other_low, high + other_high
        low, high = low & _LOW, high + (low >> _HALF)
    return _unknown((((high & _LOW) << _HALF) | low).astype(dtype))


def _halves(x: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """The lower and the upper 32 bits of 64, as uint64."""
    bits = _unknown(x).astype("uint64")
    return bits & _LOW, bits >> _HALF


def _unknown(value: tirx.Expr) -> tirx.Expr:
    """What TVM knows nothing of, and LLVM to be `value` itself: the larger of it and the least integer."""
    dtype = str(value.ty.dtype)
    larger = "llvm.umax" if dtype.startswith("u") else "llvm.smax"
    return tirx.call_llvm_pure_intrin(dtype, larger, value, tirx.min_value(dtype))


def _broadcast(shapes: Sequence[Sequence[tirx.Expr]]) -> list[tirx.Expr]:
    """The shape of a result; sizes that are not 1 are the same, whatever they are written as."""
    rank = max(map(len, shapes))
    columns = [[shape[axis] for shape in shapes if len(shape) >= -axis] for axis in range(-rank, 0)]
    return [next((size for size in column if not _is_one(size)), column[0]) for column in columns]


def _is_one(size: tirx.Expr) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1
