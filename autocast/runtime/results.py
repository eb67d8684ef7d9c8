"""What a compiled function returns is what its module says: looked at once for inputs of other types than before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm_ffi

from autocast.errors import CompileError
from autocast.runtime.sizes import Size, evaluate, text_of
from autocast.runtime.tensors import dtype_name, is_array


@dataclass(frozen=True)
class Output:
    """A tensor that is returned: its dtype, and its shape, as far as they are known before."""

    dtype: str | None
    shape: tuple[Size | None, ...] | None

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join("?" if n is None else text_of(n) for n in self.shape)
        return f"{self.dtype or 'any dtype'}[{sizes}]"

    def fits(self, value: Any, sizes: Mapping[str, int]) -> bool:
        """Whether `value` may be this tensor, where names have the values of `sizes`."""
        if not is_array(value) or self.dtype not in (None, dtype_name(value)):
            return False
        if self.shape is None:
            return True
        known = (evaluate(size, sizes) for size in self.shape)
        # A slice that ends before it begins has less than no elements by its formula.
        pairs = zip(known, value.shape, strict=False)
        return len(self.shape) == len(value.shape) and all(n is None or n < 0 or n == got for n, got in pairs)


#: What a function returns: a tensor, several, or what is not looked at.
Outputs: TypeAlias = "Output | tuple[Outputs, ...] | None"


def check_outputs(declared: Outputs, outputs: Any, sizes: Mapping[str, int]) -> None:
    """Raise CompileError unless what `main` has returned is what its module says, for these sizes."""
    if found := _unlike(declared, outputs, sizes, "the result"):
        where, expected, got = found
        known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise CompileError(
            f"main: {where} is {_described(got)}, and its module declares {_text(expected)}"
            f"{' with ' * bool(known)}{known}. Expected what it declares: unless main's type promises what is not so, "
            "which R.match_cast would check, this is a fault of autocast or of TVM. Please report it, with the module"
        )


def _unlike(declared: Outputs, value: Any, sizes: Mapping[str, int], where: str) -> tuple[str, Outputs, Any] | None:
    """Where a value is not what is declared, what that is, and what the value is."""
    if declared is None or (isinstance(declared, Output) and declared.fits(value, sizes)):
        return None
    if (
        isinstance(declared, Output)
        or not isinstance(value, tuple | list | tvm_ffi.Array)
        or len(value) != len(declared)
    ):
        return where, declared, value
    places = (f"{where}'s field {index}" for index in range(len(declared)))
    found = (_unlike(*triple[:2], sizes, triple[2]) for triple in zip(declared, value, places, strict=True))
    return next((one for one in found if one), None)


def _text(declared: Outputs) -> str:
    return f"({', '.join(map(_text, declared))})" if isinstance(declared, tuple) else str(declared or "anything")


def _described(value: Any) -> str:
    if is_array(value):
        return str(Output(dtype_name(value), tuple(int(size) for size in value.shape)))
    if isinstance(value, tuple | list | tvm_ffi.Array):
        return f"({', '.join(map(_described, value))})"
    return f"a {type(value).__name__}"
