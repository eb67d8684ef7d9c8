"""The adjoints that a backward pass has gathered so far, and how they are added up."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.errors import GradientError
from autocast.ir import PlacedBuilder, dtype_of, same_shape, shape_of
from autocast.training.gradients import Adjoint


class Adjoints:
    """Adjoints of variables: expressions for tensors, tuples of them for tuples, None for zero."""

    def __init__(self, builder: PlacedBuilder, wanted: set[relax.Var]) -> None:
        self.builder, self.wanted = builder, wanted
        self.gathered: dict[relax.Var, Adjoint] = {}

    def of(self, var: relax.Var) -> Adjoint:
        """The adjoint of `var`: complete once every use of it has been visited, None where it is zero."""
        return self.gathered.get(var)

    def add(self, expr: relax.Expr, adjoint: Adjoint) -> None:
        """Add to the adjoints of the variables that `expr`, an argument or a tuple of arguments, is made of."""
        if adjoint is None:
            return
        if isinstance(expr, relax.Tuple):
            for field, part in zip(expr.fields, self._fields(adjoint, len(expr.fields)), strict=True):
                self.add(field, part)
        elif isinstance(expr, relax.TupleGetItem):
            parts: list[Adjoint] = [None] * len(expr.tuple_value.ty.fields)
            parts[expr.index] = adjoint
            self.add(expr.tuple_value, tuple(parts))
        elif isinstance(expr, relax.Var) and expr in self.wanted:
            self.gathered[expr] = self._sum(self.gathered.get(expr), adjoint, expr.ty, f"{expr.name}_grad")

    def _sum(self, old: Adjoint, new: Adjoint, ty: tvm.ir.Type, name: str) -> Adjoint:
        if new is None:
            return old
        if isinstance(ty, tvm.ir.TupleType):
            count = len(ty.fields)
            pairs = zip(self._fields(old, count), self._fields(new, count), ty.fields, strict=True)
            return tuple(self._sum(first, second, field, name) for first, second, field in pairs)
        new = self._bound(new, name)
        _check_type(new, ty, name)
        return new if old is None else self.builder.emit(relax.op.add(old, new), name)

    def _fields(self, adjoint: Adjoint, count: int) -> tuple[Adjoint, ...]:
        """The adjoints of a tuple's fields, however the adjoint of the tuple is written."""
        if adjoint is None:
            return (None,) * count
        if isinstance(adjoint, relax.Tuple):
            return tuple(adjoint.fields)
        if isinstance(adjoint, relax.Expr):
            tuple_var = self._bound(adjoint, "grads")
            return tuple(relax.TupleGetItem(tuple_var, i) for i in range(count))
        return tuple(adjoint)

    def _bound(self, adjoint: relax.Expr, name: str) -> relax.Expr:
        return adjoint if isinstance(adjoint, relax.Var) else self.builder.emit(adjoint, name)


def _check_type(adjoint: relax.Expr, ty: relax.TensorType, name: str) -> None:
    shape = ty.shape
    fits = not isinstance(shape, relax.ShapeExpr) or same_shape(shape_of(adjoint), list(shape.values))
    if dtype_of(adjoint) != str(ty.dtype) or not fits:
        raise GradientError(
            f"differentiate: a rule answered {adjoint.ty} as {name!r}, the adjoint of a {ty}; expected the same type. "
            "Broadcast arguments need autocast.training.gradients.shapes.unbroadcast"
        )
