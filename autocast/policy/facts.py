"""What a policy asks of a module besides its calls: which parameters a call reads, what the low dtype cannot hold, and
what follows a conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

import type_hints
from autocast.ir import (
    FLOATS,
    ConstantExpr,
    Reading,
    dtype_of,
    fits,
    identity,
    is_constant,
    items,
    op_name,
    out_of_range,
    place_of,
    relax_functions,
)
from autocast.ir.literals import rounding
from autocast.operators import MOVING, is_kind

_NOTHING: frozenset[str] = frozenset()

#: Operators in whose results a number stays as large as it is: masks of attention are written with these.
_KEEPING = frozenset(
    ("relax.where", "relax.add", "relax.subtract", "relax.multiply", "relax.negative", "relax.maximum", "relax.minimum")
)


def parameter_names(reading: Reading, params: Sequence[str] = ()) -> dict[int, frozenset[str]]:
    """The names of the parameter that each variable is, or is another layout of; keyed by `identity`.

    Parameters
    ----------
    reading
        A module.
    params
        The names that main's last parameters have in their torch module, if these differ from their variables'.
    """
    names: dict[int, frozenset[str]] = {}
    for global_var, function in relax_functions(reading.mod):
        for param in items(function.params):
            names[identity(param)] = frozenset((param.name,))
        if global_var.name_hint == "main" and params:
            for param, name in zip(function.params[-len(params) :], params, strict=True):
                names[identity(param)] |= {name}
        for bound in reading.all_bindings(function.body):
            value = bound.args[0] if moves_data(bound.value) else bound.value
            known = names.get(identity(value), _NOTHING) if isinstance(value, relax.Var) else _NOTHING
            if known:
                names[bound.key] = known
    return names


def moves_data(value: relax.Expr) -> bool:
    """Whether `value` is its first argument, a variable, in another layout."""
    name = op_name(value)
    row = type_hints.get_row(name) if name is not None else None
    return row is not None and row.family == "layout" and isinstance(value.args[0], relax.Var)


def parameters_out_of_range(params: Mapping[str, tvm.runtime.Tensor], dtype: str) -> dict[str, str]:
    """The float32 parameters that `dtype` cannot hold, and why."""
    wide = {name: tensor for name, tensor in params.items() if str(tensor.dtype) == "float32"}
    reasons = {name: out_of_range(np.from_dlpack(tensor), dtype) for name, tensor in wide.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def overflowing(params: Mapping[str, tvm.runtime.Tensor], lost: Collection[str], dtype: str) -> frozenset[str]:
    """Those of the `lost` parameters of which numbers become infinite in `dtype`, as a mask's do."""
    return frozenset(name for name in lost if rounding(np.from_dlpack(params[name]), dtype).overflowed)


def unholdable(
    reading: Reading, params: Sequence[str], lost: Collection[str], dtype: str, overflowing: Collection[str] = ()
) -> dict[int, str | None]:
    """What `dtype` cannot hold, by `identity`: parameters, with their names, literals, and what is made of them.

    Where a number overflows, so does what it is chosen into, added to, or multiplied with: rounded, a row of a mask's
    lowest numbers is a row of -inf, whose softmax is NaN.

    Parameters
    ----------
    reading
        A module.
    params
        The names of main's last parameters.
    lost
        Those that `dtype` cannot hold. Under another name, in another layout or in another function they are the same.
    dtype
        The low dtype.
    overflowing
        Those of `lost` of which numbers become infinite in it.
    """
    mod = reading.mod
    found: dict[int, str | None] = {}
    variables = mod["main"].params[-len(params) :] if params else ()
    for name, variable in zip(params, variables, strict=True):
        if name in lost:
            found[identity(variable)] = name
    functions = [function for _, function in relax_functions(mod)]
    large = {at for at, name in found.items() if name in overflowing}
    for function in functions:
        literals: dict[int, relax.Expr] = {}
        for _, _, key, value, _, args, keys in reading.all_bindings(function.body):
            if ConstantExpr in map(type, args):
                literals.update((at, arg) for at, arg in zip(keys, args, strict=True) if is_constant(arg))
            if not args and is_constant(value):
                literals[key] = value
        for at, literal in literals.items():
            if dtype_of(literal) == "float32" and not fits(number := literal.value.numpy(), dtype):
                found[at] = None
                large.update((at,) if rounding(number, dtype).overflowed else ())
    before = -1
    while len(found) + len(large) > before and found:  # calls of functions may reach one that was visited before
        before = len(found) + len(large)
        for function in functions:
            for _, _, key, value, _, args, keys in reading.all_bindings(function.body):
                if not found.keys().isdisjoint(keys) and isinstance(value.op, tvm.ir.GlobalVar):
                    for param, given in _passed_on(mod, value.op, keys):
                        if given in found:
                            found[param] = found[given]
                        if given in large:
                            large.add(param)
                source = keys[0] if args and keys[0] in found and moves_data(value) else identity(value)
                if source in found:
                    found[key] = found[source]
                if source in large:
                    large.add(key)
                elif op_name(value) in _KEEPING and (read := large.intersection(keys)):
                    found.setdefault(key, next(filter(None, map(found.get, read)), None))
                    large.add(key)
    return found


def _passed_on(mod: tvm.IRModule, called: tvm.ir.GlobalVar, keys: Sequence[int]) -> Sequence[tuple[int, int]]:
    """The parameters of a function of the module, each with what it is given."""
    function = mod[called]
    if not isinstance(function, relax.Function):
        return []
    return list(zip(map(identity, items(function.params)), keys, strict=True))


def after_float_conversions(reading: Reading) -> frozenset[int]:
    """The variables (by `identity`) that are computed from an author's conversion of a tensor to float32.

    A conversion to low precision ends it: what is computed from its result is free again. A gradient is where the
    forward call is whose gradient it is, though it is computed from what comes after.
    """
    spread = _Spread(reading)
    while True:
        before = len(spread.found)
        for _, function in relax_functions(reading.mod):
            spread.over(function.body)
        if len(spread.found) == before:  # calls of functions may have reached one that was visited before
            return frozenset(spread.found)


class _Spread:
    """Follows conversions to float32 through bindings, tuples, conditionals and calls of functions."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.mod = reading, reading.mod
        self.found: set[int] = set()
        self.fields: dict[int, relax.Tuple] = {}
        self.forward: set[tuple[str, str]] = set()

    def over(self, sequence: relax.SeqExpr) -> None:
        for _, var, key, value, *_ in self.reading.all_bindings(sequence):
            if isinstance(value, relax.Tuple):
                self.fields[key] = value
            place, operator = place_of(var), op_name(value)
            if place.forward:
                is_after = (place.forward, place.forward_result) in self.forward
            elif operator == "relax.astype" and dtype_of(value.args[0]) in (*FLOATS, "float64"):
                is_after = dtype_of(var) == "float32"
            else:
                # What only moves data may be shared with what comes before.
                is_after = (place.converted == "float32" and not is_kind(value, *MOVING)) or self.reaches(value)
            if is_after:
                self.found.add(key)
                if operator is not None and not place.forward:
                    self.forward.add((operator, var.name))

    def reaches(self, expr: relax.Expr) -> bool:
        if isinstance(expr, relax.If):
            return any(self.reaches(branch.body) for branch in (expr.true_branch, expr.false_branch))
        if isinstance(expr, relax.TupleGetItem):
            fields = self.fields.get(identity(expr.tuple_value))
            return self.reaches(fields.fields[expr.index] if fields is not None else expr.tuple_value)
        if isinstance(expr, relax.Call):
            if isinstance(expr.op, tvm.ir.GlobalVar) and isinstance(self.mod[expr.op], relax.Function):
                for param, arg in zip(self.mod[expr.op].params, expr.args, strict=True):
                    if self.reaches(arg):
                        self.found.add(identity(param))
            return any(self.reaches(arg) for arg in expr.args)
        return any(identity(var) in self.found for var in relax.analysis.free_vars(expr))
