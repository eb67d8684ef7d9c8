"""What a `match_cast` looks at, and what it says, where passes would lose it."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.reading import Reading
from autocast.ir.views import all_bindings, identity, main_of, relax_functions, shape_of, with_functions


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
            return R.add(x, z)                                  return R.add(x, z)

    Whoever calls it with other sizes reads that `y` does not fit. What a branch says may not hold in the other one.
    """
    main = main_of(mod)
    if main is None:
        return mod
    shapes = [shape_of(param) or () for param in main.params]
    own = {identity(size) for shape in shapes for size in shape if isinstance(size, tirx.Var)}
    same: dict[int, tuple[tirx.Var, tirx.Var | int]] = {}

    def known(size: tirx.Expr | int) -> tirx.Expr | int:
        while identity(size) in same:
            size = same[identity(size)][1]
        return size

    casts = [b for block in main.body.blocks for b in block.bindings if isinstance(b, relax.MatchCast)]
    for cast in casts:
        for size, said in zip(shape_of(cast.value) or (), shape_of(cast.var) or (), strict=False):
            old, new = known(size), known(said)
            if (
                identity(old) in own
                and identity(old) != identity(new)
                and (isinstance(new, int) or identity(new) in own)
            ):
                same[identity(old)] = old, new
    if not same:
        return mod
    main = main.bind_symbolic_vars({old: known(old) for old, _ in same.values()})
    return with_functions(mod, {"main": main})
