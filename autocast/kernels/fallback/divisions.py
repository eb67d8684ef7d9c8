"""Divide what decreases in a way that TVM leaves alone: it makes 5 + i // -2 of (11 - i) // 2, another number.

Its `IterMapSimplify`, which `FlattenBuffer` asks about indices, takes the quotient of a sum apart though the number in
it is no multiple of the divisor. It does not know `truncdiv` and `truncmod`.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)

#: Of longer conditions TVM looks for a proof for minutes: sizes of padded windows are quotients of quotients.
_LONGEST = 64


def keep_divisions(mod: tvm.IRModule) -> tvm.IRModule:
    """Write divisions in indices whose numerator decreases as truncating ones.

    Before::                                After::

        y[i] = x[(11 - i) // 2]                 y[i] = x[truncdiv(11 - i, 2)]

    Where nobody can know that the numerator is 0 or more, either side of 0 is truncated so that it is rounded down.
    """
    changed = {
        var: _kept(function)
        for var, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and _has_decreasing_divisions(function.body)
    }
    if not changed:
        return mod
    return tvm.IRModule({**mod.functions, **changed}, attrs=mod.attrs, global_infos=mod.global_infos)


def _has_decreasing_divisions(part: object) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(part, (_DIVISIONS, lambda division: found.append(_decreases(division.a))))
    return any(found)


def _decreases(expr: tirx.Expr) -> bool:
    """Whether something that is not known is subtracted in `expr`, or multiplied by less than 0."""
    found: list[bool] = []

    def subtracted(difference: tirx.Sub) -> None:
        found.append(not isinstance(difference.b, tirx.IntImm))

    def multiplied(product: tirx.Mul) -> None:
        found.append(any(isinstance(factor, tirx.IntImm) and int(factor) < 0 for factor in (product.a, product.b)))

    tvm_ffi.structural_walk(expr, ((tirx.Sub, subtracted), (tirx.Mul, multiplied)))
    return any(found)


def _is_short(condition: tirx.Expr) -> bool:
    parts: list[object] = []
    tvm_ffi.structural_walk(condition, (tirx.Expr, parts.append))
    return len(parts) <= _LONGEST


def _kept(function: tirx.PrimFunc) -> tirx.PrimFunc:
    analyzer = tvm.sym.Analyzer()

    def loop(statement: tirx.For) -> None:
        analyzer.bind(statement.loop_var, tvm.ir.Range.from_min_extent(statement.min, statement.extent), True)

    def block(statement: s_tir.SBlock) -> None:
        for axis in statement.iter_vars:
            analyzer.bind(axis.var, axis.dom, True)

    def divided(division: tirx.Expr) -> tirx.Expr:
        if not _decreases(division.a):
            return division
        a, b = division.a, division.b
        divide = tirx.truncdiv if isinstance(division, tirx.FloorDiv) else tirx.truncmod
        positive = tirx.all(a >= 0, b > 0)
        if _is_short(positive) and analyzer.can_prove(positive):
            return divide(a, b)
        down = tirx.Select(a >= 0, tirx.truncdiv(a, b), -tirx.truncdiv(b - 1 - a, b))
        return down if divide is tirx.truncdiv else a - down * b

    def moved(access: tvm.ir.TensorLoad | tirx.BufferStore) -> tvm.ir.TensorLoad | tirx.BufferStore:
        places = [tvm_ffi.structural_map(index, (_DIVISIONS, divided)) for index in access.indices]
        if all(new.same_as(old) for new, old in zip(places, access.indices, strict=True)):
            return access
        if isinstance(access, tirx.BufferStore):
            return tirx.BufferStore(access.buffer, access.value, places)
        return tirx.BufferLoad(access.source, places)

    tvm_ffi.structural_walk(function.body, ((tirx.For, loop), (s_tir.SBlock, block)))
    return function.with_body(tvm_ffi.structural_map(function.body, ((tvm.ir.TensorLoad, tirx.BufferStore), moved)))
