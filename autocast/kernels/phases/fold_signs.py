"""Move the signs of parts that are negated before they are joined into what the whole is multiplied by."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, dtype_of, is_op, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions, users_of
from autocast.kernels.explain import explain

_JOINS = ("relax.concat", "relax.stack")


@mutator
class _FoldSigns(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.joined: set[relax.Var] = set()
        #: For the products of what is joined: their other factor, and its signs.
        self.products: dict[relax.Var, tuple[relax.Expr, np.ndarray]] = {}
        for var, value in self.bound.items():
            if is_op(value, *_JOINS) and any(map(self.is_negated, value.args[0].fields)):
                self.fold(var, value)

    def is_negated(self, field: relax.Expr) -> bool:
        """Whether a field is the negative of something, and nothing but that."""
        return self.uses[field] == 1 and is_op(self.bound.get(field), "relax.negative")

    def reader(self, var: relax.Var) -> relax.Var | None:
        """What alone reads `var`."""
        readers = self.users.get(var, [])
        return readers[0] if len(readers) == 1 and self.uses[var] == 1 else None

    def fold(self, join: relax.Var, call: relax.Call) -> None:
        """Note that the signs of a join go into a product of it, where that has a factor for each of its parts."""
        whole, product = join, self.reader(join)
        if product is not None and is_op(self.bound[product], "relax.reshape"):
            whole, product = product, self.reader(product)
        if product is None or not is_op(self.bound[product], "relax.multiply") or dtype_of(whole) not in FLOATS:
            return
        factor = next(operand for operand in self.bound[product].args if not operand.same_as(whole))
        signs = self.signs(call, shape_of(join) or (), shape_of(whole) or (), shape_of(factor) or ())
        if signs is not None:
            self.joined.add(join)
            self.products[product] = factor, signs
            explain("fold_signs", join, "into what it is multiplied by", taken=True)

    def signs(self, call: relax.Call, joined: tuple, whole: tuple, factor: tuple) -> np.ndarray | None:
        """The sign of each element of the last dimensions of `whole`, if these are known, and `factor` has them."""
        axis = int(call.attrs.axis or 0) % max(len(joined), 1)
        extents = [
            1 if is_op(call, "relax.stack") else (shape_of(field) or joined)[axis] for field in call.args[0].fields
        ]
        if not all(isinstance(extent, int) for extent in extents):
            return None
        for first in range(axis, -1, -1):
            inner = joined[first:]
            if (count := _count(inner)) is None:
                return None
            last = next((n for n in range(1, len(whole) + 1) if _count(whole[-n:]) == count), None)
            if last is not None and tuple(factor[-last:]) == tuple(whole[-last:]):
                break
        else:
            return None
        each = [-1.0 if self.is_negated(field) else 1.0 for field in call.args[0].fields]
        along = np.repeat(each, extents).reshape([-1 if first + n == axis else 1 for n in range(len(inner))])
        return np.broadcast_to(along, inner).reshape(whole[-last:])

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if binding.var in self.joined:
            fields = [self.bound[field].args[0] if self.is_negated(field) else field for field in call.args[0].fields]
            return relax.Call(call.op, [relax.Tuple(list(map(self.new, fields)))], call.attrs, call.ty_args)
        if binding.var not in self.products:
            return None
        factor, signs = self.products[binding.var]
        left, right = (self.with_signs(arg, signs) if arg.same_as(factor) else self.new(arg) for arg in call.args)
        return relax.op.multiply(left, right)

    def with_signs(self, factor: relax.Expr, signs: np.ndarray) -> relax.Expr:
        """`factor` times its signs; where several products have both, common subexpressions are found later."""
        literal = relax.const(signs.astype("float32"), "float32")
        if dtype_of(factor) != "float32":
            literal = self.emit(relax.op.astype(literal, dtype_of(factor)))
        return self.emit(relax.op.multiply(self.new(factor), literal))


def _count(shape: tuple) -> int | None:
    """How many elements a shape has, if that is known."""
    return math.prod(shape) if all(isinstance(dim, int) for dim in shape) else None


def fold_signs(mod: tvm.IRModule) -> tvm.IRModule:
    """Multiply by negative factors instead of negating parts: no bit of the product is another, but that of a NaN.

    Before::                                             After::

        n = R.negative(b)                                    t = R.concat((b, a), axis=-1)
        t = R.concat((n, a), axis=-1)                        s = R.multiply(sin, [-1, ..., 1, ...])
        y = R.multiply(t, sin)                               y = R.multiply(t, s)

    These are rotary embeddings, whose sines are constants, or the same in all layers: a kernel that joins reads slices
    where they are, but what is negated before would be stored.
    """
    return rewrite_functions(mod, _FoldSigns)
