"""Compute in float32 whatever is stored in bfloat16 or float16."""

from __future__ import annotations

import inspect
from collections.abc import Collection

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, dtype_of, is_constant, is_op, relax_functions
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.storage import LOW, compared_as, computes
from autocast.operators import MULTIPLYING, Kind, is_kind

#: Kinds whose kernels take what is stored low as it is.
_WHOLE = (Kind.ATTENTION, Kind.RECURRENCE, *MULTIPLYING)


def with_result(call: relax.Call, operands: list[relax.Expr], dtype: str) -> relax.Call:
    """A product of `operands` like `call`, accumulated in and answering `dtype`."""
    if is_op(call, "relax.matmul"):
        return relax.op.matmul(*operands, out_dtype=dtype)
    build = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
    options = {name: getattr(call.attrs, name) for name in list(inspect.signature(build).parameters)[2:]}
    return build(*operands, **{**options, "out_dtype": dtype})


def with_operands(call: relax.Call, operands: list[relax.Expr]) -> relax.Call:
    """The computation of `call` on `operands`; a scan whose accumulator was asked to be low gets a float32 one."""
    if is_op(call, "relax.cumsum", "relax.cumprod") and str(call.attrs.dtype) in LOW:
        build = getattr(relax.op, call.op.name.removeprefix("relax."))
        return build(operands[0], call.attrs.axis, "float32", call.attrs.exclusive)
    return relax.Call(call.op, operands, call.attrs, call.ty_args)


class _InFloat32(BindingRewriter):
    """Gives operands in float32, and results in the dtypes that they had."""

    def enter(self, function: relax.Function) -> None:
        self.wide: dict[relax.Var, relax.Var] = {}

    def widened(self, operand: relax.Expr) -> relax.Expr:
        """`operand` in float32: what it was before it was narrowed, if nothing else reads it."""
        if isinstance(operand.ty, tvm.ir.TupleType):
            if not _is_low(operand):
                return self.new(operand)
            if isinstance(operand, relax.Tuple):
                return relax.Tuple([self.widened(field) for field in operand.fields])
            whole = self.new(operand)
            fields = [self.emit(relax.TupleGetItem(whole, i)) for i in range(len(operand.ty.fields))]
            return relax.Tuple([relax.op.astype(f, "float32") if _is_low(f) else f for f in fields])
        if not _is_low(operand):
            return self.new(operand)
        if operand in self.wide:
            return self.wide[operand]
        if is_constant(operand):
            return relax.const(operand.value.numpy().astype("float32"), "float32")
        return self.emit(relax.op.astype(self.new(operand), "float32"))

    def narrowed(self, result: relax.Expr, ty: tvm.ir.Type) -> relax.Expr:
        """`result` with the dtypes of `ty`."""
        if isinstance(ty, tvm.ir.TupleType):
            fields = [self.emit(relax.TupleGetItem(result, i)) for i in range(len(ty.fields))]
            return relax.Tuple([self.narrowed(field, want) for field, want in zip(fields, ty.fields, strict=True)])
        if dtype_of(result) == str(ty.dtype):
            return result
        return relax.op.astype(result, str(ty.dtype))


@mutator
class _Widen(_InFloat32):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call, var = binding.value, binding.var
        if is_op(call, "relax.astype") and call.args[0] in self.wide and not self.ends_product(call.args[0]):
            return self.narrowed(self.wide[call.args[0]], call.ty)
        if compared_as(call) is not None:
            operand = self.emit(relax.op.astype(self.new(call.args[0]), compared_as(call)))
            return self.narrowed(self.emit(with_operands(call, [operand])), call.ty)
        if not computes(call) or is_kind(call, *_WHOLE) or not any(map(_is_low, call.args)):
            return None
        result = self.emit(with_operands(call, [self.widened(operand) for operand in call.args]))
        stays_wide = is_kind(call, Kind.ELEMENTWISE, Kind.REDUCTION)
        if stays_wide and self.uses[var] == 1 and isinstance(var, relax.DataflowVar):
            self.wide[var] = result
        return self.narrowed(result, call.ty)

    def ends_product(self, var: relax.Var) -> bool:
        """Whether `var` is computed from a product: its kernel stores it, in the dtype that was decided on."""
        return any(is_kind(self.values.get(operand), *MULTIPLYING) for operand in self.values[var].args)


def _is_low(expr: relax.Expr) -> bool:
    def low(ty: tvm.ir.Type) -> bool:
        if isinstance(ty, tvm.ir.TupleType):
            return any(low(field) for field in ty.fields)
        return isinstance(ty, relax.TensorType) and str(ty.dtype) in LOW

    return low(expr.ty)


def compute_in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every operator that computes in a low dtype to load low, compute in float32 and store low.

    Before::                                  After::

        a: bf16 = R.add(x, y)                     x1: f32 = R.astype(x, "float32")
        b: bf16 = R.exp(a)                        y1: f32 = R.astype(y, "float32")
        c: bf16 = R.matmul(b, w)                  b: bf16 = R.astype(R.exp(R.add(x1, y1)), "bfloat16")
                                                  c: bf16 = R.matmul(b, w)

    Two neighbours of which the first has no other reader keep the value between them in float32; what a cast of the
    model narrows is rounded. So do operators that compare elements, where TVM cannot compare them as they are stored.
    Data movement stays in its storage dtype. Products, attention and recurrences are left to their
    kernels, which multiply low operands as they are and accumulate in float32.
    """
    return rewrite_functions(mod, _Widen)


@mutator
class _WidenProducts(_InFloat32):
    def __init__(self, mod: tvm.IRModule, dtypes: Collection[str]) -> None:
        super().__init__(mod)
        self.dtypes = dtypes

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not _multiplies(call, self.dtypes):
            return None
        result = self.emit(with_operands(call, [self.widened(operand) for operand in call.args]))
        return self.narrowed(result, call.ty)

    def widened(self, operand: relax.Expr) -> relax.Expr:
        """`operand` in float32, once for all products of a block."""
        wide = super().widened(operand)
        if isinstance(operand, relax.DataflowVar) and _is_low(operand):
            self.wide[operand] = wide
        return wide


def _multiplies(call: relax.Expr, dtypes: Collection[str]) -> bool:
    return is_kind(call, *_WHOLE) and any(dtype_of(operand) in dtypes for operand in call.args)


def multiply_in_float32(mod: tvm.IRModule, dtypes: Collection[str]) -> tvm.IRModule:
    """Rewrite products, attention and recurrences of `dtypes` to load low, compute in float32 and store low.

    Before::                       After::

        c: bf16 = R.matmul(b, w)       b1: f32 = R.astype(b, "float32")
                                       w1: f32 = R.astype(w, "float32")
                                       p: f32 = R.matmul(b1, w1)
                                       c: bf16 = R.astype(p, "bfloat16")
    """
    bindings = (binding for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    if not any(_multiplies(binding.value, dtypes) for binding in bindings):
        return mod
    return rewrite_functions(mod, _WidenProducts, dtypes)


@mutator
class _Accumulate(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if is_kind(call, *MULTIPLYING) and dtype_of(call) in LOW:
            product = self.emit(with_result(call, [self.new(operand) for operand in call.args], "float32"))
            return relax.op.astype(product, dtype_of(call))
        if is_op(call, "relax.cumsum", "relax.cumprod") and dtype_of(call) == "float32":
            build = getattr(relax.op, call.op.name.removeprefix("relax."))
            data = self.emit(relax.op.astype(self.new(call.args[0]), "float64"))
            scan = self.emit(build(data, call.attrs.axis, "float64", call.attrs.exclusive))
            return relax.op.astype(scan, "float32")
        return None


def accumulate_wide(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite low products that no kernel computes, so that TVM sums them in float32, and scans, so that it does in
    float64: in float32 the error of their last element would grow with its number.

    Before::                                          After::

        c: bf16 = R.matmul(b, w)                          p: f32 = R.matmul(b, w, out_dtype="float32")
                                                          c: bf16 = R.astype(p, "bfloat16")
        s: f32 = R.cumprod(x, axis=0)                     y: f64 = R.astype(x, "float64")
                                                          z: f64 = R.cumprod(y, axis=0)
                                                          s: f32 = R.astype(z, "float32")
    """
    return rewrite_functions(mod, _Accumulate)
