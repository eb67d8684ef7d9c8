"""What a `match_cast` looks at, and what it says, where passes would lose it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.reading import Reading
from autocast.ir.views import all_bindings, identity, main_of, relax_functions, with_functions

#: A name, a number, an expression of names, or None where nothing is known.
Size: TypeAlias = Any


@mutator
class _Binder(PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        if isinstance(value, relax.Call):
            value = self.builder_.emit(value)
        self.builder_.emit_normalized(relax.MatchCast(binding.var, value, binding.ty))


def matches_calls(reading: Reading) -> bool:
    """Whether a `match_cast` of a module looks at a call that has no variable."""
    return any(bound.op for bound in reading.beside_calls)


def bind_matched_calls(mod: tvm.IRModule) -> tvm.IRModule:
    """Give each call that a `match_cast` looks at a variable of its own.

    Before::                                            After::

        v = R.match_cast(R.unique(x), R.Tensor(("n",)))     gv = R.unique(x)
                                                            v = R.match_cast(gv, R.Tensor(("n",)))
    """
    functions = {
        var: _Binder().visit_expr(function)
        for var, function in relax_functions(mod)
        if any(type(b) is relax.MatchCast and type(b.value) is relax.Call for b in all_bindings(function.body))
    }
    if not functions:
        return mod
    return with_functions(mod, functions)


def with_equal_sizes(mod: tvm.IRModule) -> tvm.IRModule:
    """Give one name to the sizes of `main` that a `match_cast` says are the same: TVM would forget that they are.

    Before::                                            After::

        def main(x: ("n", 4), y: ("m", 4)):                 def main(x: ("n", 4), y: ("n", 4)):
            z = R.match_cast(y, R.Tensor(("n", 4)))             z = R.match_cast(y, R.Tensor(("n", 4)))
            u = R.match_cast(f(x), R.Tensor(("p", 4)))          u = R.match_cast(f(x), R.Tensor(("n", 4)))
            v = R.match_cast(u, R.Tensor(("n", 4)))             v = R.match_cast(u, R.Tensor(("n", 4)))
            return R.add(z, v)                                  return R.add(z, v)

    Whoever calls it with other sizes reads that `y` does not fit. What a branch says may not hold in the other one.
    """
    main = main_of(mod)
    if main is None:
        return mod
    same = _Sizes(size for param in main.params for sizes in sizes_in(param.ty) for size in sizes)
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        if isinstance(binding, relax.MatchCast):
            for sizes, said in zip_longest(sizes_in(binding.value.ty), sizes_in(binding.ty), fillvalue=()):
                for size, name in zip_longest(sizes, said):
                    same.say(size, name)
    table = same.table()
    return with_functions(mod, {"main": _with_sizes(main, table)}) if table else mod


class _Sizes:
    """Names of sizes, in the order in which they are first read, and what each is the same as."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        self.names: dict[int, tuple[int, tirx.Var]] = {}
        self.same: dict[int, Size] = {}
        for size in sizes:
            self.say(None, size)

    def known(self, size: Size) -> Size:
        """The first name of a size, or its number."""
        while isinstance(size, tirx.Var) and identity(size) in self.same:
            size = self.same[identity(size)]
        return size

    def say(self, size: Size, name: Size) -> None:
        """That `name` is what is read of `size`, which may not be known."""
        old, new = self.known(size), self.known(name)
        for name in (old, new):
            if isinstance(name, tirx.Var):
                self.names.setdefault(identity(name), (len(self.names), name))
        if not isinstance(old, tirx.Var | int) or not isinstance(new, tirx.Var | int):
            return
        first, later = sorted((old, new), key=self._order)
        if isinstance(later, tirx.Var) and self._order(first) != self._order(later):
            self.same[identity(later)] = first

    def _order(self, size: tirx.Var | int) -> int:
        return -1 if isinstance(size, int) else self.names[identity(size)][0]

    def table(self) -> dict[tirx.Var, tirx.Var | int]:
        """What each name that is not the first of its size is written as."""
        return {self.names[name][1]: self.known(size) for name, size in self.same.items()}


def sizes_in(ty: tvm.ir.Type) -> list[tuple[Size, ...]]:
    """The sizes of each tensor and shape of a type; none where they are not known."""
    if isinstance(ty, tvm.ir.TupleType):
        return [sizes for field in ty.fields for sizes in sizes_in(field)]
    values = ty.values if isinstance(ty, relax.ShapeType) else getattr(getattr(ty, "shape", None), "values", None)
    return [tuple(int(size) if isinstance(size, tirx.IntImm) else size for size in values or ())]


def _with_sizes(function: relax.Function, table: dict[tirx.Var, tirx.Var | int]) -> relax.Function:
    """TVM writes sizes for those that arguments have: for this while, they have all of them."""
    argument = relax.Var("sizes", relax.ShapeType([*table]))
    params, body = [*function.params, argument], function.body
    bound = relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs).bind_symbolic_vars(table)
    return relax.Function([*bound.params][:-1], bound.body, bound.ret_ty, bound.is_pure, bound.attrs)
