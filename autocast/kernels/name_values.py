"""Give names to the values inside a PrimFunc's stores that are used more than once."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from autocast.kernels import fast_math

_ROUND_TRIP = ["float32", "bfloat16", "float32"]


def name_values(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn `T.Let` inside stored values to statements, equal ones to one, and name what is narrowed to bfloat16.

    Before::                                                 After::

        y[i] = T.Cast("bfloat16", T.Let(t * t, where={t: x}))    t = x
                                                                 wide = t * t
                                                                 y[i] = T.Cast("bfloat16", wide)

    Inlining copies expressions, and with them the definitions of their `Let` variables, of which a function may have only
    one each. TVM's rounding to bfloat16 repeats its operand, however long that is.
    """
    body = tvm_ffi.structural_map(function.body, (tirx.Cast, _rounded))
    return function.with_body(tvm_ffi.structural_map(body, (tirx.BufferStore, _name_values)))


def _rounded(cast: tirx.Cast) -> tirx.Expr:
    """Round to bfloat16 and back in the bits of the float32 number: TVM's legalization drops such a pair of casts."""
    inner = cast.value
    if not isinstance(inner, tirx.Cast) or [str(e.ty.dtype) for e in (cast, inner, inner.value)] != _ROUND_TRIP:
        return cast

    def bits(value: int) -> tirx.Expr:
        return tirx.const(value, "uint32")

    def nearest_even(number: tirx.Expr) -> tirx.Expr:
        return (number + ((number >> bits(16)) & bits(1)) + bits(0x7FFF)) & bits(0xFFFF0000)

    return tirx.reinterpret("float32", fast_math.once(tirx.reinterpret("uint32", inner.value), nearest_even))


def _name_values(store: tirx.BufferStore) -> tirx.Stmt:
    bound: list[tuple[tirx.Var, tirx.Expr]] = []
    # A value that is only read under a condition stays under it: the memory may not exist otherwise.
    value = _renamed(store.value) if _has_condition(store.value) else _hoisted(store.value, bound, {})
    statements = [tirx.Bind(var, _widened(definition)) for var, definition in bound]
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == "bfloat16" and str(value.value.ty.dtype) == "float32":
        wide = tirx.Var("wide", "float32")
        statements.append(tirx.Bind(wide, _widened(value.value)))
        value = wide.astype("bfloat16")
    if not statements and value.same_as(store.value):
        return store
    store = tirx.BufferStore(store.buffer, value, store.indices)
    return tirx.SeqStmt([*statements, store]) if statements else store


def _widened(expr: tirx.Expr) -> tirx.Expr:
    """`expr` with conversions from bfloat16 to float32 spelled as shifts: TVM legalizes none inside a named value."""

    def widened(cast: tirx.Cast) -> tirx.Expr:
        if str(cast.ty.dtype) != "float32" or str(cast.value.ty.dtype) != "bfloat16":
            return cast
        bits = tirx.reinterpret("uint16", cast.value).astype("uint32")
        return tirx.reinterpret("float32", bits << tirx.const(16, "uint32"))

    return tvm_ffi.structural_map(expr, (tirx.Cast, widened))


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
        return tvm_ffi.VisitInterrupt(call) if getattr(call.op, "name", "") == "tirx.if_then_else" else None

    return tvm_ffi.structural_walk(expr, (tvm.ir.Call, stop)) is not None
