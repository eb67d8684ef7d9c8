"""What a casting rule is asked with (`Argument`) and what it answers (`PrimType`, `TupleType`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm

from type_hints.errors import CastingRuleError


class PrimType:
    """The hint for one argument: the dtype it should have, or None for "do not touch".

    TVM 0.27 has a `PrimType` too, which rules may answer with (`as_hint`), but cannot build `PrimType(None)`.

    Parameters
    ----------
    dtype
        "float32", the AMP dtype, or None: the dtype that the argument had in the original model. A TVM
        dtype is accepted and kept as its name.
    """

    __slots__ = ("dtype",)
    dtype: str | None

    def __init__(self, dtype: Any) -> None:
        if dtype is not None and type(dtype) is not str:
            # TVM's dtypes are strings, or hold one in `.dtype`.
            text = getattr(dtype, "dtype", dtype)
            if not isinstance(text, str):
                raise CastingRuleError(
                    f"PrimType({dtype!r}): got {type(dtype).__name__}, expected a dtype name or None; "
                    'try PrimType("float32"), PrimType(amp_dtype) or PrimType(None)'
                )
            dtype = str(text)
        if dtype == "":
            raise CastingRuleError('PrimType(""): expected a dtype name, or None for "do not touch"')
        object.__setattr__(self, "dtype", dtype)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PrimType is immutable; cannot set {name!r}")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PrimType) and self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash(("PrimType", self.dtype))

    def __repr__(self) -> str:
        return f"PrimType({self.dtype!r})" if self.dtype is None else f'PrimType("{self.dtype}")'

    def __reduce__(self) -> tuple:
        return PrimType, (self.dtype,)


class TupleType:
    """The hint for an argument that is a tuple: one hint for each field, nested as the argument is."""

    __slots__ = ("fields",)
    fields: tuple[Hint, ...]

    def __init__(self, fields: Iterable[Hint]) -> None:
        if not isinstance(fields, Iterable):
            raise CastingRuleError(
                f"TupleType: got a {type(fields).__name__}, expected the hints of a tuple's fields; try "
                'TupleType([PrimType("float32")])'
            )
        fields = tuple(fields)
        for index, field in enumerate(fields):
            if not isinstance(field, PrimType | TupleType):
                raise CastingRuleError(
                    f"TupleType: field {index} is {field!r}, expected a PrimType or a TupleType of type_hints"
                )
        object.__setattr__(self, "fields", fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TupleType is immutable; cannot set {name!r}")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TupleType) and self.fields == other.fields)

    def __hash__(self) -> int:
        return hash(("TupleType", self.fields))

    def __repr__(self) -> str:
        return f"TupleType([{', '.join(map(repr, self.fields))}])"

    def __reduce__(self) -> tuple:
        return TupleType, (self.fields,)


Hint = PrimType | TupleType


class Argument:
    """One argument of the call that a rule is asked about.

    Parameters
    ----------
    expr
        The expression that stands in the original model; None where a derived operator has an argument
        that the real call lacks (`axis` of `bias_add`).
    checked_type
        The type it has now, at this point of the cast decision: a `relax.TensorType`, a
        `tvm.ir.TupleType`, or anything else for what is not a tensor.
    """

    __slots__ = ("checked_type", "expr")

    def __init__(self, expr: Any, checked_type: Any) -> None:
        self.expr = expr
        self.checked_type = checked_type

    @property
    def ty(self) -> Any:
        """`checked_type` under TVM 0.27's name."""
        return self.checked_type

    def __repr__(self) -> str:
        return f"Argument({self.expr!r}, {self.checked_type!r})"


#: `rule(args, ret_type, amp_dtype)` gives one hint for each argument, and may add one for the result.
Rule = Callable[[Sequence[Argument], Any, str], list[Hint]]


def as_hint(answer: Any) -> Any:
    """A hint as a class of this module, where a rule answers with TVM's `PrimType` or `TupleType`."""
    if isinstance(answer, tvm.ir.PrimType):
        return PrimType(answer.dtype)
    if isinstance(answer, tvm.ir.TupleType):
        return TupleType(as_hint(field) for field in answer.fields)
    return answer
