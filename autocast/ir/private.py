"""Private functions that may be written out where they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.tirx.analysis import undefined_vars

from autocast.ir.views import all_bindings, shape_of

#: Bindings that functions may have once calls are replaced: functions that each call the next twice double at every
#: step.
_LIMIT = 50_000


def is_private(function: relax.Function) -> bool:
    """Whether a function is called from its module alone, and is no group and nothing else that attributes say."""
    return not dict(function.attrs or {})


def fits(function: relax.Function, values: Sequence[relax.Expr]) -> bool:
    """Whether it is known now that `values` are of the types that a function takes, and what all its sizes are.

    A call would check the first. A size that a function finds out for itself must not have one name in two copies.
    """
    pairs = list(zip(function.params, values, strict=True))
    sizes = {
        size: given
        for param, value in pairs
        for size, given in zip(_sizes(param), _sizes(value), strict=False)
        if isinstance(size, tirx.Var)
    }
    if sizes.keys() != set(relax.analysis.defined_symbolic_vars(function)):
        return False
    params = _with_sizes(function.params, sizes) if sizes else function.params
    return all(tvm_ffi.structural_equal(param.ty, value.ty) for param, value in zip(params, values, strict=False))


def _sizes(expr: relax.Expr) -> Sequence[tirx.Expr | int]:
    """The sizes of a tensor, or those that a shape is made of; none where they are not known."""
    return (expr.ty.values if isinstance(expr.ty, relax.ShapeType) else shape_of(expr)) or ()


def _with_sizes(params: Sequence[relax.Var], sizes: Mapping[tirx.Var, tirx.Expr | int]) -> Sequence[relax.Var]:
    """`params` with these sizes, made of names that the caller has: a last parameter has them, too."""
    names = [name for size in sizes.values() if isinstance(size, tirx.Expr) for name in undefined_vars(size)]
    own = relax.Var("sizes", relax.ShapeType(names))
    signature = relax.Function([*params, own], relax.SeqExpr([], own), own.ty)
    return signature.bind_symbolic_vars(sizes).params


def private_functions(functions: Mapping[str, relax.Function]) -> frozenset[str]:
    """The private functions that do not call themselves; none where writing them out would take too many bindings."""
    bindings = {name: sum(1 for _ in all_bindings(function.body)) for name, function in functions.items()}
    callees = {name: _callees(function) for name, function in functions.items()}
    candidates = (name for name, function in functions.items() if is_private(function))
    private = frozenset(name for name in candidates if not _calls_itself(name, callees))
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            written_out = (count * size(callee) for callee, count in callees[name].items() if callee in private)
            sizes[name] = bindings[name] + sum(written_out)
        return sizes[name]

    return private if sum(map(size, functions)) <= _LIMIT else frozenset()


def recursive_functions(functions: Mapping[str, relax.Function]) -> frozenset[str]:
    """The functions that call themselves, by way of others, too."""
    callees = {name: _callees(function) for name, function in functions.items()}
    return frozenset(name for name in functions if _calls_itself(name, callees))


def _callees(function: relax.Function) -> Counter[str]:
    """How often a function calls each of its module."""
    values = (binding.value for binding in all_bindings(function.body))
    called = (value.op for value in values if isinstance(value, relax.Call))
    return Counter(op.name_hint for op in called if isinstance(op, tvm.ir.GlobalVar))


def _calls_itself(name: str, callees: Mapping[str, Counter[str]]) -> bool:
    reached: set[str] = set()
    pending = [name]
    while pending:
        new = callees.get(pending.pop(), {}).keys() - reached
        reached |= new
        pending.extend(new)
    return name in reached
