"""The interpreter's table of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from tests.fuzz.values import Tensor

#: Computes a call of interpreted arguments: tensors, tuples, shapes as tuples of whole numbers, numbers, or None.
Function = Callable[..., Any]


class Unknown(Exception):
    """The module does something that the interpreter does not know, or whose result is not determined."""


@dataclass(frozen=True)
class Operator:
    """What an operator computes, and how its results are rounded.

    Attributes
    ----------
    units
        Roundings of float32 that computing takes; 0 where results are exact, and only stored; None where they were
        stored before, as those of operators that only move elements are.
    """

    compute: Function
    units: float | None

    def __call__(self, call: relax.Call, amp: str | None, *operands: Any) -> Any:
        """The results, rounded."""
        return self._rounded(self.compute(call, *operands), amp)

    def _rounded(self, result: Any, amp: str | None) -> Any:
        if isinstance(result, tuple):
            return tuple(self._rounded(field, amp) for field in result)
        if not isinstance(result, Tensor) or self.units is None or (self.units == 0 and amp is None):
            return result
        return result.rounded(amp, self.units)


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, units: float | None = 1.0) -> Callable[[Function], Function]:
    """Say what operators compute: `function(call, *operands)`."""

    def register(function: Function) -> Function:
        for name in names:
            OPERATORS[name] = Operator(function, units)
        return function

    return register


def dtype_of(call: relax.Call) -> str:
    """The dtype of a call's result, a tensor."""
    return str(call.ty.dtype)


def integers(values: Any) -> tuple[int, ...]:
    """An attribute, whole numbers of Python."""
    return tuple(int(value) for value in values)
