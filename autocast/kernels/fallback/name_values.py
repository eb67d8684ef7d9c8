"""Give names to the values inside a PrimFunc's stores that are used more than once."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from autocast.kernels.fallback import fast_math


def name_values(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn `T.Let` inside stored values to statements, equal ones to one, and name what is narrowed to bfloat16.

    Before::                                                 After::

        y[i] = T.Cast("bfloat16", T.Let(t * t, where={t: x}))    t = x
                                                                 wide = t * t
                                                                 y[i] = T.Cast("bfloat16", wide)

    Inlining copies expressions, and with them the definitions of their `Let` variables, of which a function may have
    only one each. TVM's rounding to bfloat16 repeats its operand, however long that is.
    """
    widener = _Widener(function)
    body = tvm_ffi.structural_map(function.body, (tirx.Cast, widener.widened))
    return function.with_body(
        tvm_ffi.structural_map(body, (tirx.BufferStore, lambda store: _name_values(store, widener)))
    )


class _Widener:
    """Spells conversions from bfloat16 to float32 in bits: TVM legalizes none inside a named value."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.arguments = set(function.params)

    def widened(self, cast: tirx.Cast) -> tirx.Expr:
        return self.wide(cast.value) if _is(cast, "float32") and _is(cast.value, "bfloat16") else cast

    def wide(self, expr: tirx.Expr) -> tirx.Expr:
        """The bfloat16 `expr` as float32.

        A value that was just narrowed is rounded, which TVM's legalization would drop. It makes buffers that are not
        arguments float32, so what is read from them is only cast.
        """
        if isinstance(expr, tirx.Cast) and _is(expr.value, "float32"):
            return tirx.reinterpret("float32", fast_math.once(tirx.reinterpret("uint32", expr.value), _nearest_even))
        if isinstance(expr, tirx.FloatImm):
            return tirx.const(float(expr.value), "float32")
        if isinstance(expr, tirx.Select):
            return tirx.Select(expr.condition, self.wide(expr.true_value), self.wide(expr.false_value))
        if _is_condition(expr):
            return tirx.if_then_else(expr.args[0], self.wide(expr.args[1]), self.wide(expr.args[2]))
        if isinstance(expr, tvm.ir.TensorLoad) and expr.source in self.arguments:
            bits = tirx.reinterpret("uint16", expr).astype("uint32")
            return tirx.reinterpret("float32", bits << tirx.const(16, "uint32"))
        return expr.astype("float32")


def _nearest_even(number: tirx.Expr) -> tirx.Expr:
    """The bits of a float32 number rounded to the upper half, ties to even."""

    def bits(value: int) -> tirx.Expr:
        return tirx.const(value, "uint32")

    return (number + ((number >> bits(16)) & bits(1)) + bits(0x7FFF)) & bits(0xFFFF0000)


def _name_values(store: tirx.BufferStore, widener: _Widener) -> tirx.Stmt:
    bound: list[tuple[tirx.Var, tirx.Expr]] = []
    value = store.value
    if _is(value, "bfloat16") and (isinstance(value, tirx.Select) or _is_condition(value)) and _narrows(value):
        value = widener.wide(value).astype("bfloat16")
    # A value that is only read under a condition stays under it: the memory may not exist otherwise.
    value = _renamed(value) if _has_condition(value) else _hoisted(value, bound, {})
    statements = [tirx.Bind(var, definition) for var, definition in bound]
    if isinstance(value, tirx.Cast) and _is(value, "bfloat16") and _is(value.value, "float32"):
        wide = tirx.Var("wide", "float32")
        statements.append(tirx.Bind(wide, value.value))
        value = wide.astype("bfloat16")
    if not statements and value.same_as(store.value):
        return store
    store = tirx.BufferStore(store.buffer, value, store.indices)
    return tirx.SeqStmt([*statements, store]) if statements else store


def _hoisted(expr: tirx.Expr, bound: list[tuple[tirx.Var, tirx.Expr]], known: dict) -> tirx.Expr:
    """`expr` with each Let replaced by its body; `bound` receives the definitions in order, equal ones once."""

    def body(let: tirx.Expr) -> tirx.Expr:
        while isinstance(let, tirx.Let):
            value = _hoisted(let.value, bound, known)
            key = tvm_ffi.StructuralKey(value)
            if key not in known:
                known[key] = tirx.Var(let.var.name, str(let.var.ty.dtype))
                bound.append((known[key], value))
            let = _substituted(let.body, let.var, known[key])
        return let

    return tvm_ffi.structural_map(expr, (tirx.Let, body), order="pre")


def _renamed(expr: tirx.Expr) -> tirx.Expr:
    """`expr` with a variable of its own for each Let."""

    def renamed(let: tirx.Let) -> tirx.Expr:
        var = tirx.Var(let.var.name, str(let.var.ty.dtype))
        return tirx.Let(var, let.value, _substituted(let.body, let.var, var))

    return tvm_ffi.structural_map(expr, (tirx.Let, renamed))


def _substituted(expr: tirx.Expr, old: tirx.Var, new: tirx.Var) -> tirx.Expr:
    return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda var: new if var.same_as(old) else var))


def _has_condition(expr: tirx.Expr) -> bool:
    def stop(call: tvm.ir.Call) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(call) if _is_condition(call) else None

    return tvm_ffi.structural_walk(expr, (tvm.ir.Call, stop)) is not None


def _narrows(expr: tirx.Expr) -> bool:
    def stop(cast: tirx.Cast) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(cast) if _is(cast, "bfloat16") else None

    return tvm_ffi.structural_walk(expr, (tirx.Cast, stop)) is not None


def _is_condition(expr: tirx.Expr) -> bool:
    return isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "prim.if_then_else"


def _is(expr: tirx.Expr, dtype: str) -> bool:
    return str(expr.ty.dtype) == dtype
