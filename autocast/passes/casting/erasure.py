"""The check after every AutoCast: without its casts, the new module is the old one.

Both modules are walked side by side, binding by binding. Casts between float32 and the AMP dtype are looked through
on both sides; everything else must be the same operator, with the same attributes, on the same operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import is_
from typing import Any, NoReturn

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from autocast.errors import CastErasureError
from autocast.ir import Bound, Reading, identity, is_constant, relax_functions, with_captured
from autocast.passes.casting.signatures import Types

_ASTYPE = identity(tvm.ir.Op.get("relax.astype"))


def check_erasure(before: Reading, after: tvm.IRModule, amp: str) -> None:
    """Raise CastErasureError unless `after` is `before` plus casts between float32 and `amp`."""
    old, new = dict(_by_name(before.mod)), dict(_by_name(after))
    if old.keys() != new.keys():
        raise CastErasureError(
            f"AutoCast: the functions changed from {sorted(old)} to {sorted(new)}; please report this"
        )
    reading = Reading(after, before)
    for name, function in old.items():
        _Comparison(name, amp, before, reading).functions(function, new[name])


def _by_name(mod: tvm.IRModule) -> Iterator[tuple[str, relax.Function]]:
    return ((global_var.name_hint, function) for global_var, function in relax_functions(mod))


class _Comparison:
    """Old and new variables that stand for the same value, while two functions are walked."""

    def __init__(self, function: str, amp: str, before: Reading, after: Reading) -> None:
        self.function = function
        self.before, self.after = before, after
        self.family = ("float32", amp)
        self.types = Types()
        #: The dtypes of casts by the `identity` of their attributes, which both modules keep.
        self.targets: dict[int, str] = {}
        self.old: dict[int, Any] = {}
        self.new: dict[int, Any] = {}

    def functions(self, old: relax.Function, new: relax.Function) -> None:
        params = others = self.before.params(old)
        if not new.params.same_as(old.params):
            others = self.after.params(new)
        if len(params) != len(others):
            self.fail("the parameters", len(params), len(others))
        for a, b in zip(params, others, strict=True):
            self.same(a, b)
        self.sequences(old.body, new.body)

    def same(self, old: relax.Var, new: relax.Var) -> None:
        """From here on `old` and `new` are one value, known by the old variable."""
        self.old[identity(old)] = self.new[identity(new)] = old

    def sequences(self, old: relax.SeqExpr, new: relax.SeqExpr) -> None:
        pairs = zip_longest(self.kept(self.before, old, self.old), self.kept(self.after, new, self.new))
        for a, b in pairs:
            if a is None or b is None:
                self.fail("the number of bindings", a and a.var.name, b and b.var.name)
            self.values(a, b)
            self.old[a.key] = self.new[b.key] = a.var
        if not self.equal(self.look(old.body, self.old), self.look(new.body, self.new)):
            self.fail("the result", old.body, new.body)

    def kept(self, reading: Reading, sequence: relax.SeqExpr, known: dict) -> Iterator[Bound]:
        """The bindings that compute something: renaming, grouping, projecting and casting are looked through."""
        for _, block in reading.blocks(sequence):
            for bound in block:
                value = bound.value
                if type(value) is relax.Call:
                    looked_through = bound.op == _ASTYPE and self.is_cast(value, bound.args)
                else:
                    renames = isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem) or is_constant(value)
                    looked_through = renames and not isinstance(bound.binding, relax.MatchCast)
                if looked_through:
                    source, key = (bound.args[0], bound.keys[0]) if bound.args else (value, identity(value))
                    known[bound.key] = known[key] if key in known else self.look(source, known)
                else:
                    yield bound

    def is_cast(self, value: relax.Call, args: Sequence[relax.Expr]) -> bool:
        source, attrs = self.types.dtype(args[0].ty.dtype), value.attrs
        target = self.targets.get(identity(attrs))
        if target is None:
            target = self.targets[identity(attrs)] = str(attrs.dtype)
        return source == target or (source in self.family and target in self.family)

    def look(self, expr: Any, known: dict) -> Any:
        """What an expression stands for, as a value that `equal` compares."""
        key = identity(expr)
        if key in known:
            return known[key]
        if isinstance(expr, relax.Call):
            is_cast = identity(expr.op) == _ASTYPE and self.is_cast(expr, expr.args)
            return self.look(expr.args[0], known) if is_cast else expr
        if isinstance(expr, relax.Tuple):
            return [self.look(field, known) for field in expr.fields[:]]
        if isinstance(expr, relax.TupleGetItem):
            value = self.look(expr.tuple_value, known)
            return value[expr.index] if isinstance(value, list) else (value, expr.index)
        return expr

    def equal(self, old: Any, new: Any) -> bool:
        if isinstance(new, list) and not isinstance(old, list):
            old = [(old, at) for at in range(len(new))]  # a tuple is the list of its fields
        elif isinstance(old, list) and not isinstance(new, list):
            new = [(new, at) for at in range(len(old))]
        if isinstance(old, list | tuple):
            same_kind = isinstance(new, list | tuple) and len(old) == len(new)
            return same_kind and all(self.equal(a, b) for a, b in zip(old, new, strict=True))
        if isinstance(old, int) or isinstance(new, int | list | tuple):
            return type(old) is type(new) and old == new
        if old.same_as(new):
            return True
        if is_constant(old) and is_constant(new):
            return self.constants(old, new)
        return not isinstance(old, relax.Var) and tvm_ffi.structural_equal(old, new)

    def constants(self, old: Any, new: Any) -> bool:
        """The same literal, perhaps rounded to the AMP dtype, as a cast that was folded into it has done."""
        if tvm_ffi.structural_equal(old, new):
            return True
        was, now = old.value.numpy(), new.value.numpy()
        if not {str(was.dtype), str(now.dtype)} <= set(self.family):
            return False
        with np.errstate(over="ignore", under="ignore"):
            roundings = was.astype(now.dtype), was.astype(self.family[1]).astype(now.dtype)
        return any(np.array_equal(rounded, now, equal_nan=True) for rounded in roundings)

    def values(self, a: Bound, b: Bound) -> None:
        old, new = a.value, b.value
        if type(old) is relax.Call and type(new) is relax.Call:
            known = list(map(self.old.get, a.keys))
            is_kept = a is b or identity(old) == identity(new)
            if is_kept and all(map(is_, known, map(self.new.get, a.keys))):
                return
            if a.op != b.op:
                self.require(a.var, "operator", self.look(old.op, self.old), self.look(new.op, self.new))
            others = list(map(self.new.get, b.keys))
            for at, (value, other) in enumerate(zip_longest(known, others)):
                if value is None or value is not other:
                    pair = [side.args[at] if at < len(side.args) else None for side in (a, b)]
                    self.require(a.var, f"argument {at}", self.look(pair[0], self.old), self.look(pair[1], self.new))
            self.attributes(a.var, old.attrs, new.attrs)
            return
        if isinstance(old, relax.If) and isinstance(new, relax.If):
            self.require(a.var, "condition", self.look(old.cond, self.old), self.look(new.cond, self.new))
            self.sequences(old.true_branch, new.true_branch)
            self.sequences(old.false_branch, new.false_branch)
        elif isinstance(old, relax.Function) and isinstance(new, relax.Function):
            self.closures(a.var, old, new)
        else:
            self.require(a.var, "value", self.look(old, self.old), self.look(new, self.new))

    def closures(self, name: relax.Var, old: relax.Function, new: relax.Function) -> None:
        """Nested functions are the same but for the names of what they capture."""
        captured = [(var, self.look(var, self.old)) for var in relax.analysis.free_vars(old)]

        def first(value: Any, otherwise: relax.Var) -> relax.Var:
            return next((var for var, known in captured if self.equal(known, value)), otherwise)

        was = {var: first(value, var) for var, value in captured}
        now = {var: first(self.look(var, self.new), var) for var in relax.analysis.free_vars(new)}
        self.require(name, "value", with_captured(old, was), with_captured(new, now))

    def attributes(self, var: relax.Var, old: Any, new: Any) -> None:
        """Attributes may differ in the dtype that the result is stored in, and in nothing else."""
        if identity(old) == identity(new):
            return
        if old is None or new is None:
            self.fail(f"the attributes of %{var.name}", old, new)
        for field in type(old).__tvm_ffi_type_info__.fields:
            a, b = getattr(old, field.name), getattr(new, field.name)
            if field.name != "out_dtype" and not (
                a == b if isinstance(a, int | float | str) else tvm_ffi.structural_equal(a, b)
            ):
                self.fail(f"attribute {field.name} of %{var.name}", a, b)

    def require(self, var: relax.Var, what: str, old: Any, new: Any) -> None:
        if not self.equal(old, new):
            self.fail(f"the {what} of %{var.name}", old, new)

    def fail(self, what: str, old: Any, new: Any) -> NoReturn:
        raise CastErasureError(
            f"AutoCast: erasing the casts of @{self.function} does not give the input back: {what} was {old} and is "
            f"{new}. This is a bug in AutoCast; please report it with the module"
        )
