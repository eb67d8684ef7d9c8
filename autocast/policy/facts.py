"""What a policy asks of a module besides its calls: which parameters a call reads, and what follows a conversion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tvm
from tvm import relax

import type_hints
from autocast.ir import FLOATS, dtype_of, identity, op_name, relax_functions

_NOTHING: frozenset[str] = frozenset()


def parameter_names(mod: tvm.IRModule, params: Sequence[str] = ()) -> dict[int, frozenset[str]]:
    """The names of the parameter that each variable is, or is another layout of; keyed by `identity`.

    Parameters
    ----------
    mod
        A module.
    params
        The names that main's last parameters have in their torch module, if these differ from their variables'.
    """
    names: dict[int, frozenset[str]] = {}
    for global_var, function in relax_functions(mod):
        for param in function.params:
            names[identity(param)] = frozenset((param.name,))
        if global_var.name_hint == "main" and params:
            for param, name in zip(function.params[-len(params) :], params, strict=True):
                names[identity(param)] |= {name}
        for binding in _bindings(function.body):
            value = binding.value
            if _moves_data(value):
                value = value.args[0]
            known = names.get(identity(value), _NOTHING) if isinstance(value, relax.Var) else _NOTHING
            if known:
                names[identity(binding.var)] = known
    return names


def _moves_data(value: relax.Expr) -> bool:
    name = op_name(value)
    row = type_hints.get_row(name) if name is not None else None
    return row is not None and row.family == "layout" and isinstance(value.args[0], relax.Var)


def after_float_conversions(mod: tvm.IRModule) -> frozenset[int]:
    """The variables (by `identity`) that are computed from an author's conversion of a tensor to float32.

    A conversion to low precision ends it: what is computed from its result is free again.
    """
    found: set[int] = set()
    while True:
        before = len(found)
        for _, function in relax_functions(mod):
            _spread(function.body, mod, found)
        if len(found) == before:
            return frozenset(found)


def _spread(sequence: relax.SeqExpr, mod: tvm.IRModule, found: set[int]) -> None:
    for binding in _bindings(sequence):
        value = binding.value
        if op_name(value) == "relax.astype" and dtype_of(value.args[0]) in (*FLOATS, "float64"):
            reached = dtype_of(binding.var) == "float32"
        elif isinstance(value, relax.If):
            reached = any(_reaches(branch.body, found) for branch in (value.true_branch, value.false_branch))
        else:
            reached = _reaches(value, found)
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                callee = mod[value.op]
                if isinstance(callee, relax.Function):
                    pairs = zip(callee.params, value.args, strict=True)
                    found.update(identity(param) for param, arg in pairs if _reaches(arg, found))
        if reached:
            found.add(identity(binding.var))


def _reaches(expr: relax.Expr, found: set[int]) -> bool:
    return any(identity(var) in found for var in relax.analysis.free_vars(expr))


def _bindings(sequence: relax.SeqExpr) -> Iterator[relax.Binding]:
    """The bindings of a sequence in order, those inside its conditionals before the conditional's own."""
    for block in sequence.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                branches: Iterable[relax.SeqExpr] = (binding.value.true_branch, binding.value.false_branch)
                for branch in branches:
                    yield from _bindings(branch)
            yield binding
