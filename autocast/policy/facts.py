"""What a policy asks of a module besides its calls: which parameters a call reads, what the low dtype cannot hold, and
what follows a conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

import type_hints
from autocast.ir import (
    FLOATS,
    Bound,
    ConstantExpr,
    Reading,
    dtype_of,
    fits,
    identity,
    items,
    op_name,
    out_of_range,
    place_of,
    relax_functions,
)
from autocast.ir.literals import rounding
from autocast.operators import MOVING, Kind, is_kind

_NOTHING: frozenset[str] = frozenset()

#: What moves elements, and what chooses or sums some: a number stays as large as it is in their results.
_KEEPING_KINDS = (Kind.VIEW, Kind.MOVE, Kind.SORT, Kind.REDUCTION, Kind.SCAN, Kind.POOLING)

#: Other operators of which the same is true: masks of attention are written with these.
_KEEPING = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "add", "full", "full_like", "image.resize2d", "maximum", "minimum", "multiply", "negative"),
        *("nn.relu", "square", "subtract"),
    )
)

#: Arguments that may be literals, or have some in them.
_HOLDING = frozenset((ConstantExpr, relax.Tuple))

_CLIP = identity(tvm.ir.Op.get("relax.clip"))
#: Operators with numbers that are no tensors, and become elements of the result.
_FILLING = frozenset((_CLIP, identity(tvm.ir.Op.get("relax.nn.pad"))))


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

    Where a number overflows, so does what it is moved, chosen or reduced into, added to, or multiplied with: rounded, a
    row of a mask's lowest numbers is a row of -inf, whose softmax is NaN. A call that fills or bounds with such a
    number of its own is here itself.

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
        for bound in reading.all_bindings(function.body):
            if not bound.args or not _HOLDING.isdisjoint(map(type, bound.args)):
                literals.update(_literals(bound))
            if bound.op in _FILLING and _fills_with_more(bound.value, dtype):
                found[identity(bound.value)] = None
                large.add(bound.key)
        for at, literal in literals.items():
            if dtype_of(literal) == "float32" and not fits(number := literal.value.numpy(), dtype):
                found[at] = None
                large.update((at,) if rounding(number, dtype).overflowed else ())
    before = -1
    while len(found) + len(large) > before and found:  # calls of functions may reach one that was visited before
        before = len(found) + len(large)
        for function in functions:
            for bound in reading.all_bindings(function.body):
                _, _, key, value, _, args, keys = bound
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
                elif large and (read := large.intersection(_sources(mod, bound))) and _keeps(bound, dtype):
                    for at in (key, *(at for at, arg in zip(keys, args, strict=True) if type(arg) is relax.Tuple)):
                        found.setdefault(at, next(filter(None, map(found.get, read)), None))
                    large.add(key)
    return found


def _literals(bound: Bound) -> Iterator[tuple[int, relax.Expr]]:
    """The literals that a binding reads or is, those in tuples too."""
    for at, arg in zip(bound.keys, bound.args, strict=True):
        if type(arg) is ConstantExpr:
            yield at, arg
    fields = [field for holder in (bound.value, *bound.args) if type(holder) is relax.Tuple for field in holder.fields]
    for field in (bound.value, *fields):
        if type(field) is ConstantExpr:
            yield identity(field), field


def _own_numbers(call: relax.Call) -> list[float]:
    """The numbers that a call pads or bounds its result with, which are no tensors."""
    if op_name(call) == "relax.nn.pad":
        return [float(call.attrs.pad_value)]
    return [float(getattr(bound, "value", "inf")) for bound in call.args[1:]]  # a size is no number yet


def _fills_with_more(call: relax.Call, dtype: str) -> bool:
    """Whether a number of the call's own overflows in `dtype`."""
    return any(rounding(np.array(number), dtype).overflowed for number in _own_numbers(call))


def _sources(mod: tvm.IRModule, bound: Bound) -> list[int]:
    """What the value of a binding is made of, by `identity`: fields of tuples, results of branches and of functions."""
    value = bound.value
    if isinstance(value, relax.Tuple):
        return [identity(field) for field in value.fields]
    if isinstance(value, relax.TupleGetItem):
        return [identity(value.tuple_value)]
    if isinstance(value, relax.If):
        return [identity(branch.body) for branch in (value.true_branch, value.false_branch)]
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        called = mod[value.op]
        return [identity(called.body.body)] if isinstance(called, relax.Function) else []
    return [*bound.keys, *(identity(field) for arg in bound.args if type(arg) is relax.Tuple for field in arg.fields)]


def _keeps(bound: Bound, dtype: str) -> bool:
    """Whether a number stays as large as it is in the value of a binding, where that is a number or a tuple."""
    if dtype_of(bound.var) not in (None, "float32"):
        return False
    value = bound.value
    if not isinstance(value, relax.Call) or isinstance(value.op, tvm.ir.GlobalVar):
        return True
    if bound.op == _CLIP:
        return not all(np.isfinite(number) for number in _own_numbers(value)) or _fills_with_more(value, dtype)
    return is_kind(value, *_KEEPING_KINDS) or op_name(value) in _KEEPING


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
