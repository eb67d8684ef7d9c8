"""Compare floating-point numbers as whole ones that are in the same order, where TVM looks for places or sorts.

It compares with `<`, which has no order for NaN: in a sort, one of them leaves all others where they were. NaN is the
largest of all, and where the smallest is looked for, the smallest. So it is in extrema of float64, in which TVM passes
over NaN and knows of nothing below the lowest finite number.
"""

from __future__ import annotations

from functools import partial

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import dtype_of, op_name
from autocast.ir.rewriting import BindingRewriter, rewrite_functions

#: Dtypes of the numbers, and of their keys.
_KEYS = {"float32": "int32", "float64": "int64"}
_FLOATS = (*_KEYS, "float16")
_OPERATORS = tuple(f"relax.{name}" for name in ("sort", "argsort", "topk", "argmax", "argmin"))
#: Operators whose result is one of the numbers; of narrower ones, kernels of ours compute them.
_EXTREMA = ("relax.max", "relax.min", *(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3)))


def _flipped(bits: tirx.Expr, dtype: str) -> tirx.Expr:
    """The bits of a negative number but its sign, turned; the same again gives them back."""
    return tirx.Select(bits < 0, bits ^ tirx.max_value(dtype), bits)


def _key(x: te.Tensor, *, zeros_alike: bool, nan_first: bool = False) -> te.Tensor:
    dtype = _KEYS[str(x.dtype)]
    infinity = tirx.const({"int32": 0x7F800000, "int64": 0x7FF0000000000000}[dtype], dtype)
    largest = tirx.max_value(dtype)

    def key(*place: tirx.Var) -> tirx.Expr:
        bits = tirx.reinterpret(dtype, x[place])
        magnitude = bits & largest
        number = _flipped(bits, dtype)
        if zeros_alike:
            number = tirx.Select(magnitude == 0, tirx.const(0, dtype), number)
        return tirx.Select(magnitude > infinity, tirx.min_value(dtype) if nan_first else largest, number)

    return te.compute(x.shape, key, name="sort_key")


def _number(keys: te.Tensor, *, dtype: str) -> te.Tensor:
    return te.compute(
        keys.shape,
        lambda *place: tirx.reinterpret(dtype, _flipped(keys[place], _KEYS[dtype])),  # the largest key is a NaN
        name="sorted",
    )


@mutator
class _OrderFloats(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        name = op_name(call)
        if name in _EXTREMA and dtype_of(call) == "float64":
            keys = self.emit(
                self.te(partial(_key, zeros_alike=False, nan_first=name == "relax.min"), self.new(call.args[0]))
            )
            return self.numbers(relax.Call(call.op, [keys], call.attrs), call.args[0])
        if name not in _OPERATORS or dtype_of(call.args[0]) not in _FLOATS:
            return None
        data, options = self.new(call.args[0]), call.attrs
        if dtype_of(data) == "float16":
            data = self.emit(relax.op.astype(data, "float32"))
        # Where places are asked for, the first of equal numbers comes first.
        key = partial(_key, zeros_alike=name != "relax.sort", nan_first=name == "relax.argmin")
        keys = self.emit(self.te(key, data))
        if name in ("relax.argmax", "relax.argmin"):
            return relax.Call(call.op, [keys], options)
        if name == "relax.argsort":
            return relax.op.argsort(keys, options.axis, options.descending, str(options.dtype))
        if name == "relax.sort":
            return self.numbers(relax.op.sort(keys, options.axis, options.descending), call.args[0])
        kind = str(options.ret_type)
        found = relax.op.topk(keys, int(options.k), int(options.axis), kind, bool(options.largest), str(options.dtype))
        if kind != "both":
            return found if kind == "indices" else self.numbers(found, call.args[0])
        found = self.emit(found)
        values = self.emit(self.numbers(relax.TupleGetItem(found, 0), call.args[0]))
        return relax.Tuple([values, self.emit(relax.TupleGetItem(found, 1))])

    def numbers(self, keys: relax.Expr, data: relax.Expr) -> relax.Expr:
        """The numbers like `data` that have these keys."""
        dtype = str(dtype_of(data))
        wide = "float32" if dtype == "float16" else dtype
        result = self.te(partial(_number, dtype=wide), self.emit(keys))
        return result if wide == dtype else relax.op.astype(self.emit(result), dtype)

    def te(self, function: partial[te.Tensor], operand: relax.Expr) -> relax.Expr:
        return self.builder_.call_te(function, operand, primfunc_name_hint=function.func.__name__.strip("_"))


def order_floats(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite sort, argsort, topk, argmax and argmin of floating-point numbers to those of keys.

    Before::                                   After::

        y: f32 = R.sort(x)                         k: i32 = R.call_tir(key, (x,))
                                                   s: i32 = R.sort(k)
                                                   y: f32 = R.call_tir(number, (s,))
    """
    return rewrite_functions(mod, _OrderFloats)
