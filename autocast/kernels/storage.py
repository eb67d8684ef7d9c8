"""What dtypes are stored in, and what is computed in another dtype than it is stored in."""

from __future__ import annotations

from tvm import relax

from autocast.ir import dtype_of, is_op, op_name
from autocast.operators import MOVING, Kind, is_kind, row_of

#: Storage dtypes that are never computed in.
LOW = ("bfloat16", "float16")

#: The dtypes that loads of vector programs widen to float32, and stores narrow to.
LOADED = frozenset(("float32", *LOW, "bool", "int8", "uint8", "int32", "int64"))

#: Bits of an element, of the dtypes whose elements can be moved.
BITS = {"bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "bfloat16": 16, "float16": 16} | {
    dtype: bits for bits in (32, 64) for dtype in (f"int{bits}", f"uint{bits}", f"float{bits}")
}

#: What TVM's sorting functions do not take, and what they compare instead. Given bfloat16, they read something else.
SORTED_AS = {"bfloat16": "float32", "uint32": "int64"} | dict.fromkeys(
    ("bool", "int8", "uint8", "int16", "uint16"), "int32"
)

#: Operators that look for extremes, of which TVM knows none for booleans.
_EXTREMES = ("relax.argmax", "relax.argmin", "relax.max", "relax.min")

#: Moves that may add to what is there, and how they say so.
_ADDING = {
    "relax.scatter_elements": lambda attrs: attrs.reduction != "update",
    "relax.scatter_nd": lambda attrs: attrs.reduction != "update",
    "relax.index_put": lambda attrs: bool(attrs.accumulate),
}


def is_narrow(dtype: str | None) -> bool:
    """Whether it is a floating-point dtype of a byte or less, which TVM does not convert rightly."""
    return str(dtype).startswith(("float8_", "float6_", "float4_"))


def compared_as(call: relax.Expr) -> str | None:
    """The dtype that the operand of an operator which compares elements has to be widened to, if it has to."""
    if is_kind(call, Kind.SORT):
        return SORTED_AS.get(dtype_of(call.args[0]) or "")
    return "int32" if is_op(call, *_EXTREMES) and dtype_of(call.args[0]) == "bool" else None


def computes(call: relax.Expr) -> bool:
    """Whether `call` does arithmetic (rather than moving data, or calling code that is not ours)."""
    name, row = op_name(call), row_of(call)
    if name in _ADDING:
        return _ADDING[name](call.attrs)
    return name is not None and (row is None or (row.kind not in MOVING and row.kind is not Kind.FOREIGN))
