"""Fold factors and offsets of channels, such as batch normalization's, into the constant weights before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_constant, is_op, op_name, shape_of, storage
from autocast.ir.rewriting import BindingRewriter, rewrite_functions, users_of
from autocast.kernels.explain import explain
from autocast.kernels.storage import LOW

#: Operator -> the axis of its weights that counts features. Transposed convolutions must have one group.
_FEATURES = {
    "relax.matmul": 1,
    "relax.nn.conv1d": 0,
    "relax.nn.conv2d": 0,
    "relax.nn.conv3d": 0,
    "relax.nn.conv1d_transpose": 1,
    "relax.nn.conv2d_transpose": 1,
}

_SCALING = ("relax.multiply", "relax.divide")


@dataclass(frozen=True)
class _Affine:
    """A product, and what was done to each of its channels since: (operator, constant of one value per channel)."""

    call: relax.Call
    axis: int
    steps: tuple[tuple[str, relax.Expr], ...] = ()

    @property
    def scales(self) -> bool:
        return any(name in _SCALING for name, _ in self.steps)


@mutator
class _FoldScales(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.constant: set[relax.Var] = set(self.parameters)
        self.affine: dict[relax.Var, _Affine] = {}
        for var, value in self.bound.items():
            if isinstance(value, relax.Call) and all(map(self.is_constant, value.args)):
                self.constant.add(var)
            elif (found := self.extended(value)) is not None:
                self.affine[var] = found

    def is_constant(self, expr: relax.Expr) -> bool:
        """Whether `expr` has the same value in every call."""
        return expr in self.constant if isinstance(expr, relax.Var) else not isinstance(expr, relax.Tuple)

    def extended(self, value: Any) -> _Affine | None:
        """`value` as a product followed by arithmetic on its channels."""
        name = op_name(value)
        if name in _FEATURES:
            return _product(value) if self.is_constant(value.args[1]) else None
        if name == "relax.astype":
            rounds = storage(value.args[0]) == "float32"
            return None if rounds else self.before(value.args[0])
        if name not in (*_SCALING, "relax.add", "relax.subtract"):
            return None
        left, right = value.args
        if self.before(left) is None and name in ("relax.add", "relax.multiply"):
            left, right = right, left
        before = self.before(left)
        if before is None or not self.is_constant(right) or not _per_channel(right, before, len(dims(value))):
            return None
        if name in _SCALING and storage(before.call.args[1]) == "float16" and not self.is_computed(right):
            return None
        return replace(before, steps=(*before.steps, (name, right)))

    def is_computed(self, expr: relax.Expr) -> bool:
        """Whether a constant is more than another layout, or another precision, of a parameter or literal."""
        value: Any = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        if is_op(value, "relax.astype", "relax.reshape", "relax.permute_dims", "relax.broadcast_to"):
            return self.is_computed(value.args[0])
        return value is not None

    def before(self, expr: relax.Expr) -> _Affine | None:
        return self.affine.get(expr) if isinstance(expr, relax.Var) and self.uses[expr] == 1 else None

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        affine = self.affine.get(binding.var)
        if affine is None or not affine.scales or any(self.continues(reader) for reader in self.readers(binding.var)):
            return None
        explain("fold_scales", binding.var, "into the weights", taken=True)
        return self.folded(affine, storage(binding.var))

    def readers(self, var: relax.Var) -> list[relax.Var]:
        return self.users.get(var, []) if self.uses[var] == 1 else []

    def continues(self, reader: relax.Var) -> bool:
        """Whether `reader` will be folded too, with all that comes before it."""
        return reader in self.affine and not is_op(self.bound[reader], *_FEATURES)

    def folded(self, affine: _Affine, dtype: str) -> relax.Expr:
        emit, op = self.emit, relax.op
        scale: relax.Expr = relax.const(1.0, "float32")
        shift: relax.Expr | None = None
        for name, constant in affine.steps:
            step, vector = getattr(op, name.removeprefix("relax.")), self.vector(constant)
            if name in _SCALING:
                scale = emit(step(scale, vector))
                shift = None if shift is None else emit(step(shift, vector))
            else:
                shift = emit(step(relax.const(0.0, "float32") if shift is None else shift, vector))
        call = affine.call
        data, weights = call.args
        rank, feature_axis = len(dims(weights)), _FEATURES[call.op.name]
        factor = emit(op.reshape(scale, [-1 if axis == feature_axis else 1 for axis in range(rank)]))
        scaled = emit(op.multiply(self.wide(weights), factor))
        if storage(weights) != "float32":
            scaled = emit(op.astype(scaled, storage(weights)))
        result = emit(relax.Call(call.op, [self.new(data), scaled], call.attrs, call.ty_args))
        if shift is not None:
            result = emit(op.astype(result, "float32")) if storage(result) != "float32" else result
            axes = [-1 if axis == affine.axis else 1 for axis in range(len(dims(call)))]
            shift = emit(op.reshape(shift, axes[affine.axis :] if affine.axis == len(axes) - 1 else axes))
            result = emit(op.add(result, shift))
        return result if storage(result) == dtype else op.astype(result, dtype)

    def vector(self, constant: relax.Expr) -> relax.Expr:
        """`constant` in float32, with one dimension."""
        wide = self.wide(constant)
        return wide if len(dims(constant)) == 1 else self.emit(relax.op.reshape(wide, [-1]))

    def wide(self, expr: relax.Expr) -> relax.Expr:
        """A constant in float32; not rounded first where it is only rounded to be multiplied."""
        value: Any = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        if is_op(value, "relax.astype") and storage(value.args[0]) == "float32":
            return self.new(value.args[0])
        if is_op(value, "relax.permute_dims", "relax.reshape") and storage(expr) in LOW:
            inner = self.wide(value.args[0])
            return self.emit(relax.Call(value.op, [inner, *value.args[1:]], value.attrs, value.ty_args))
        if is_constant(expr) and storage(expr) in LOW:
            return relax.const(expr.value.numpy().astype("float32"), "float32")
        return self.new(expr) if storage(expr) == "float32" else self.emit(relax.op.astype(self.new(expr), "float32"))


def _product(call: relax.Call) -> _Affine | None:
    """`call` by itself, where a factor of each of its features can be a factor of its weights."""
    if shape_of(call) is None or shape_of(call.args[1]) is None or storage(call.args[1]) not in ("float32", *LOW):
        return None
    if is_op(call, "relax.matmul"):
        return _Affine(call, len(dims(call)) - 1) if len(dims(call.args[1])) == 2 else None
    if call.op.name.endswith("_transpose") and int(call.attrs.groups) != 1:
        return None
    return _Affine(call, str(call.attrs.out_layout or call.attrs.data_layout).index("C"))


def _per_channel(constant: relax.Expr, affine: _Affine, rank: int) -> bool:
    """Whether `constant` has one value for each of the channels of `affine`, which has `rank` dimensions."""
    shape, full = shape_of(constant), dims(affine.call)
    if shape is None or rank != len(full) or len(shape) > rank or storage(constant) not in ("float32", *LOW):
        return False
    aligned = (1,) * (rank - len(shape)) + shape
    return all(dim == (full[axis] if axis == affine.axis else 1) for axis, dim in enumerate(aligned))


def fold_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """Multiply constant weights by the factors that their products' channels are multiplied by.

    Before::                                            After::

        c = R.nn.conv2d(x, w)                               v = R.multiply(w, R.reshape(scale, [-1, 1, 1, 1]))
        y = R.add(R.multiply(c, scale), shift)              y = R.add(R.nn.conv2d(x, v), shift)

    Weights are constant if they are computed from parameters alone: what is done to them here is done once, when the
    model is compiled. A low product may be widened before its factors; a cast that rounds is no part of the chain.
    Into float16 weights go only factors that were computed, as a normalization's are, which are around 1. A parameter
    of its own, such as a layer scale of 1e-6, might leave nothing of them.
    """
    return rewrite_functions(mod, _FoldScales)
