"""Say what tensors without elements are, and what operators make of them, so that no kernel meets one."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.errors import UnsupportedError
from autocast.ir import is_op, op_name
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.operators import Kind, is_kind, row_of

op = relax.op


@mutator
class _WithoutEmpty(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            return _filled(value.ty, 0.0) if _is_empty(value.ty) else None
        name = op_name(value)
        if name is None or is_kind(value, Kind.FOREIGN) or is_op(value, "relax.zeros"):
            return None
        if _is_empty(value.ty):
            return _filled(value.ty, 0.0)
        if is_op(value, "relax.split") and any(map(_is_empty, value.ty.fields)):
            return _split(self, value)
        if not any(_is_empty(field.ty) for operand in value.args for field in _fields(operand)):
            return None
        return _RULES.get(name, _others)(self, value)

    def visit_generic_const_(self, constant: relax.Expr) -> relax.Expr:
        """Executables cannot hold one without elements."""
        return self.emit(_filled(constant.ty, 0.0)) if _is_empty(constant.ty) else constant


def _fields(expr: relax.Expr) -> list[relax.Expr]:
    return list(expr.fields) if isinstance(expr, relax.Tuple) else [expr]


def _is_empty(ty: tvm.ir.Type) -> bool:
    """Whether a type is that of a tensor one of whose dimensions is known to be 0, or of a tuple of such tensors."""
    if isinstance(ty, tvm.ir.TupleType):
        return len(ty.fields) > 0 and all(map(_is_empty, ty.fields))
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    sizes = shape.values if isinstance(shape, relax.ShapeExpr) else ()
    return any(isinstance(size, int | tvm.tirx.IntImm) and int(size) == 0 for size in sizes)


def _filled(ty: tvm.ir.Type, number: float) -> relax.Expr:
    """A tensor of type `ty`, or a tuple of tensors, all of one number."""
    if isinstance(ty, tvm.ir.TupleType):
        return relax.Tuple([_filled(field, number) for field in ty.fields])
    dtype = str(ty.dtype)
    return op.zeros(ty.shape, dtype) if number == 0 else op.full(ty.shape, relax.const(number, dtype), dtype)


_Answer = Callable[[_WithoutEmpty, relax.Call], relax.Expr | None]


def _undefined(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    raise UnsupportedError(
        f"kernels: {op_name(call)} got a {call.args[0].ty}, expected elements along every axis that it reduces: none "
        "of none is the largest, the smallest or in the middle. Leave it out where there are no elements"
    )


def _concat(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    """Of those parts only that have elements; of one such part, the part."""
    parts = [rewriter.new(part) for part in _fields(call.args[0]) if not _is_empty(part.ty)]
    return parts[0] if len(parts) == 1 else op.concat(parts, call.attrs.axis)


def _split(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr:
    """The parts one by one: TVM's own lowering wants each to have elements."""
    data, axis, begin = rewriter.new(call.args[0]), int(call.attrs.axis), 0
    parts = []
    for field in call.ty.fields:
        end = begin + field.shape.values[axis]  # which may vary
        part = _filled(field, 0.0) if _is_empty(field) else op.strided_slice(data, [axis], [begin], [end])
        parts.append(rewriter.emit(part))
        begin = end
    return relax.Tuple(parts)


def _loss(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    return _filled(call.ty, 0.0 if str(call.attrs.reduction) == "sum" else math.nan)


def _pad(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    return _filled(call.ty, float(call.attrs.pad_value)) if str(call.attrs.pad_mode) == "constant" else None


def _unchanged(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    """The data, where nothing is written to it."""
    return rewriter.new(call.args[0])


def _others(rewriter: _WithoutEmpty, call: relax.Call) -> relax.Expr | None:
    """What the operator's row says. A gradient is a sum of as many terms as there are elements: zeros."""
    row = row_of(call)
    if row is None:
        return None
    number = 0.0 if row.kind is Kind.GRADIENT else row.of_nothing
    return None if number is None else _filled(call.ty, number)


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


#: What operators whose result has elements make of operands that have none, where it is not one number.
_RULES: dict[str, _Answer] = {
    **dict.fromkeys(_names("argmax argmin max median min"), _undefined),
    **dict.fromkeys(_names("nn.cross_entropy nn.nll_loss"), _loss),
    **dict.fromkeys(_names("index_put nn.index_copy scatter_elements scatter_nd slice_scatter"), _unchanged),
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
}


def remove_empty(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace what computes tensors without elements, or computes from such tensors, by tensors of one number.

    Before::                                              After::

        a: (0, 3) = R.exp(x)                                  a: (0, 3) = R.zeros(R.shape([0, 3]))
        b: (3,) = R.mean(a, axis=[0])                         b: (3,) = R.full(R.shape([3]), NaN)
        c: (4, 3) = R.matmul(y, z)  # (4, 0), (0, 3)          c: (4, 3) = R.zeros(R.shape([4, 3]))
        d: (4, 3) = R.concat((a, c), axis=0)                  d: (4, 3) = c

    Dimensions that are known at run time are none of its business: loops of no steps do nothing.

    Raises
    ------
    UnsupportedError
        The largest, smallest or middle one of no elements, which is not defined.
    """
    return rewrite_functions(mod, _WithoutEmpty)
