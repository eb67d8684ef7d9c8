"""Remove what computes nothing, and write what remains in one way, so that patterns of kernels are few."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import (
    dims,
    dtype_of,
    is_constant,
    is_op,
    number_of,
    op_name,
    permutation,
    same_shape,
    shape_of,
    static_shape,
    storage,
)
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.phases.einsum import einsum_as_matmul
from autocast.kernels.phases.norms import batch_norm, group_norm, norm, std
from autocast.kernels.phases.padding import pad, padded_convolution
from autocast.kernels.phases.resizing import resize
from autocast.kernels.storage import LOW
from autocast.runtime.found_sizes import NONZERO

#: Constants of at most this many elements are computed now.
_FOLDED_ELEMENTS = 4096


@mutator
class _Canonicalize(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        rule = _RULES.get(op_name(binding.value) or "")
        if rule is None:
            return None
        call = binding.value
        return rule(self, call, *[self.folded(self.new(operand)) for operand in call.args])

    def folded(self, expr: relax.Expr) -> relax.Expr:
        """The constant that `expr` is bound to, if it is."""
        value = self.producer(expr)
        return value if value is not None and is_constant(value) else expr

    def producer(self, expr: relax.Expr) -> Any:
        """What the variable `expr` of the new function is bound to."""
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr


def _reshape(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr, *_: relax.Expr) -> relax.Expr | None:
    """reshape, expand_dims, squeeze, flatten: nothing, a constant, or one reshape of what was first reshaped."""
    shape = shape_of(call)
    if shape is None or shape_of(data) is None:
        return None
    if is_constant(data):
        return _folded(data, static_shape(call), np.reshape)
    source = rewriter.producer(data)
    if is_op(source, "relax.reshape"):
        data = source.args[0]
    return data if same_shape(shape_of(data), shape) else relax.op.reshape(data, relax.ShapeExpr(shape))


def _broadcast_to(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr, shape: relax.Expr) -> relax.Expr | None:
    if same_shape(shape_of(data), shape_of(call)):
        return data
    return _folded(data, static_shape(call), np.broadcast_to) if is_constant(data) else None


def _full(rewriter: _Canonicalize, call: relax.Call, shape: relax.Expr, value: relax.Expr) -> relax.Expr | None:
    """Of infinities and NaN, which TVM's own lowering does not take, the number itself, broadcast."""
    number = number_of(value)
    if number is None or math.isfinite(number) or shape_of(call) is None:
        return None
    constant = relax.const(number, dtype_of(call))
    folded = _folded(constant, static_shape(call), np.broadcast_to)
    return folded if folded is not None else relax.op.broadcast_to(constant, call.ty.shape)


def _where(rewriter: _Canonicalize, call: relax.Call, _: relax.Expr, *choices: relax.Expr) -> relax.Expr | None:
    """Of two equal tensors one: a gradient passed through one of them alone."""
    same = choices[0].same_as(choices[1]) and same_shape(shape_of(choices[0]), shape_of(call))
    return choices[0] if same else None


def _divide(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr, divisor: relax.Expr) -> relax.Expr | None:
    """By 0, which TVM refuses to write: times infinity, which is the same of every number."""
    number, dtype = number_of(divisor), str(dtype_of(call))
    if number != 0 or "float" not in dtype:
        return None
    infinity = np.full_like(divisor.value.numpy(), math.copysign(math.inf, number))
    return relax.op.multiply(data, relax.const(infinity, dtype))


def _of_one(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr) -> relax.Expr | None:
    """A scalar is sorted, and its own place is 0: TVM's own lowering asks for an axis."""
    if shape_of(data) != ():
        return None
    return data if is_op(call, "relax.sort") else relax.op.zeros(call.ty.shape, str(dtype_of(call)))


def _astype(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr) -> relax.Expr | None:
    if dtype_of(data) == dtype_of(call):
        return data
    if is_constant(data) and data.value.numpy().size <= _FOLDED_ELEMENTS:
        return relax.const(data.value.numpy().astype(_numpy_dtype(storage(call))), dtype_of(call))
    if dtype_of(call) == "bfloat16" and dtype_of(data) not in ("float32", *LOW):  # TVM forgets to round others
        return relax.op.astype(rewriter.emit(relax.op.astype(data, "float32")), "bfloat16")
    # Whoever computes what is reshaped or joined stores it narrowed.
    moved = rewriter.producer(data)
    if dtype_of(call) not in LOW or dtype_of(data) != "float32" or rewriter.uses[call.args[0]] > 1:
        return None
    if is_op(moved, "relax.reshape") and rewriter.producer(moved.args[0]) is not None:
        return relax.op.reshape(rewriter.emit(relax.op.astype(moved.args[0], dtype_of(call))), moved.args[1])
    if is_op(moved, "relax.concat", "relax.stack") and isinstance(moved.args[0], relax.Tuple):
        fields = [rewriter.emit(relax.op.astype(field, dtype_of(call))) for field in moved.args[0].fields]
        return relax.Call(moved.op, [relax.Tuple(fields), *moved.args[1:]], moved.attrs)
    return None


def _permute_dims(rewriter: _Canonicalize, call: relax.Call, data: relax.Expr) -> relax.Expr | None:
    rank = call.ty.ndim
    axes = permutation(call)
    if is_constant(data):
        return _folded(data, static_shape(call), lambda value, _: np.transpose(value, axes))
    source = rewriter.producer(data)
    if is_op(source, "relax.permute_dims"):
        first = permutation(source)
        axes, data = [first[axis] for axis in axes], source.args[0]
    return data if axes == list(range(rank)) else relax.op.permute_dims(data, axes)


def _matmul(rewriter: _Canonicalize, call: relax.Call, left: relax.Expr, right: relax.Expr) -> relax.Expr | None:
    """A product with a matrix that was first repeated for the whole batch; one of two vectors is a sum."""
    if len(shape_of(left) or ()) == len(shape_of(right) or ()) == 1:
        if not dtype_of(left) == dtype_of(right) == dtype_of(call):
            left, right = (rewriter.emit(relax.op.astype(vector, dtype_of(call))) for vector in (left, right))
        return relax.op.sum(rewriter.emit(relax.op.multiply(left, right)))
    source = rewriter.producer(right)
    if not is_op(source, "relax.broadcast_to"):
        return None
    matrix, repeated = dims(source.args[0]), dims(source)
    if shape_of(left) is None or len(matrix) < 2 or not same_shape(matrix[-2:], repeated[-2:]):
        return None
    if len(matrix) > 2 and any(dim != 1 for dim in matrix[:-2]):
        return None
    if len(dims(left)) < len(repeated) or not same_shape(dims(left)[:-2], dims(call)[:-2]):
        return None
    matrix_2d = source.args[0]
    if len(matrix) > 2:
        matrix_2d = rewriter.emit(relax.op.reshape(matrix_2d, relax.ShapeExpr(matrix[-2:])))
    return relax.op.matmul(left, matrix_2d, out_dtype=call.attrs.out_dtype)


_RULES: dict[str, Callable[..., relax.Expr | None]] = {
    **dict.fromkeys(("relax.argmax", "relax.argmin", "relax.argsort", "relax.sort"), _of_one),
    "relax.divide": _divide,
    "relax.full": _full,
    "relax.grad.no_grad": lambda rewriter, call, data: data,
    "relax.where": _where,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
    "relax.broadcast_to": _broadcast_to,
    "relax.astype": _astype,
    "relax.permute_dims": _permute_dims,
    "relax.matmul": _matmul,
    "relax.nonzero": lambda rewriter, call, x: relax.op.call_pure_packed(NONZERO, x, ty_args=call.ty),
    "relax.std": std,
    "relax.einsum": lambda rewriter, call, operands: einsum_as_matmul(call, operands, rewriter.emit),
    "relax.nn.pad": pad,
    **dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"), padded_convolution),
    "relax.nn.batch_norm": batch_norm,
    "relax.nn.group_norm": group_norm,
    **dict.fromkeys(("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm"), norm),
    **dict.fromkeys(("relax.image.resize2d", "relax.image.resize3d"), resize),
}


def _folded(constant: relax.Expr, shape: tuple | None, compute: Callable) -> relax.Expr | None:
    if shape is None or np.prod(shape) > _FOLDED_ELEMENTS:
        return None
    value = np.ascontiguousarray(compute(constant.value.numpy(), shape)).reshape(
        shape
    )  # of a scalar, numpy makes a vector
    return relax.const(value, dtype_of(constant))


def _numpy_dtype(dtype: str) -> np.dtype:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def canonicalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove identities, merge chains of reshapes and of permutations, and compute equal things once.

    Before::                                           After::

        a = R.broadcast_to(x, R.shape([8, 128, 768]))      c = R.matmul(x, w)
        b = R.broadcast_to(w, R.shape([8, 768, 768]))      e = R.permute_dims(c, [0, 2, 1])
        c = R.matmul(a, b)
        d = R.expand_dims(R.permute_dims(c), 0)
        e = R.permute_dims(R.squeeze(d), axes)

    Batch normalization for inference becomes a factor and an offset for each channel, group normalization of data whose
    channels are last reductions over space, the product of two vectors a sum, and zeros around what a convolution reads
    padding of its own. Chains are shortened before common subexpressions are looked for, because that makes more of
    them equal.
    """
    mod = rewrite_functions(mod, _Canonicalize)
    return tvm.transform.Sequential(
        [
            relax.transform.CanonicalizeBindings(),
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)
