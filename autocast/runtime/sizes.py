"""Sizes as plain values: numbers, names that a call gives values to, and what is computed of both.

A size is an `int`, a name, or a tuple `(operator, *operands)` such as `("*", 2, "n")`: nothing of a compiler, so
that it can be written to a file and read where there is none.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, reduce
from math import prod
from typing import Any, TypeAlias

Size: TypeAlias = int | str | tuple[Any, ...]

#: Name -> its value in this call.
Sizes: TypeAlias = Mapping[str, int]


def _truncated_quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


#: What the first item of a tuple means. "//" and "%" round down; "quotient" and "remainder" round towards 0.
OPERATORS: dict[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "quotient": _truncated_quotient,
    "remainder": lambda a, b: a - b * _truncated_quotient(a, b),
    "<<": operator.lshift,
    ">>": operator.rshift,
    "min": min,
    "max": max,
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "not": lambda a: int(not a),
    "if": lambda condition, a, b: a if condition else b,
}


def evaluate(size: Size | None, sizes: Sizes) -> int | None:
    """The value of `size` under `sizes`; None where a name has no value there, or a divisor is 0."""
    if isinstance(size, int) or size is None:
        return size
    if isinstance(size, str):
        return sizes.get(size)
    operands = [evaluate(operand, sizes) for operand in size[1:]]
    try:
        return None if None in operands else OPERATORS[size[0]](*operands)
    except (ZeroDivisionError, ValueError):  # ValueError: a shift by less than nothing
        return None


def evaluate_all(shape: Iterable[Size | None], sizes: Sizes) -> tuple[int, ...] | None:
    """The values of all sizes of a shape; None where one of them is not known."""
    values = tuple(evaluate(size, sizes) for size in shape)
    return None if None in values else values  # type: ignore[return-value]


def computed(name: str, *operands: Size) -> Size:
    """`(name, *operands)`, or its value where all operands are numbers; what adds, or multiplies by, nothing goes."""
    if all(isinstance(operand, int) for operand in operands):
        value = evaluate((name, *operands), {})
        return (name, *operands) if value is None else value
    if name in _NEUTRAL and _NEUTRAL[name] in operands:
        first, second = operands
        return second if first == _NEUTRAL[name] else first
    return (name, *operands)


_NEUTRAL = {"+": 0, "*": 1}


def product(*sizes: Size) -> Size:
    """Numbers multiplied now, times what a call says."""
    number: Size = prod(size for size in sizes if isinstance(size, int))
    return reduce(partial(computed, "*"), (size for size in sizes if not isinstance(size, int)), number)


def text_of(size: Size) -> str:
    """A size as a formula: `2 * n`."""
    if not isinstance(size, tuple):
        return str(size)
    name, *operands = size
    texts = [f"({text_of(operand)})" if _is_compound(operand) else text_of(operand) for operand in operands]
    if len(texts) == 2 and not name.isalpha():
        return f" {name} ".join(texts)
    return f"{name}({', '.join(map(text_of, operands))})"


def _is_compound(size: Size) -> bool:
    return isinstance(size, tuple) and not size[0].isalpha()


def as_size(value: Any) -> Size:
    """A size as JSON reads it back, where tuples have become lists."""
    return tuple(map(as_size, value)) if isinstance(value, list) else value


def tensor_bytes(shape: Iterable[int], dtype: object) -> int:
    """Bytes of a dense tensor of `shape`; a bool takes a byte, and a vector dtype counts all its lanes."""
    return (prod(shape) * bits_of(str(dtype)) + 7) // 8


@cache
def bits_of(dtype: str) -> int:
    """Bits of one element of a dtype such as `float32`, `bool`, `int4` or `float32x4`; a handle is a pointer."""
    bits, lanes = re.fullmatch(r"[a-z]*(\d*)(?:_[a-z0-9]+?)?(?:x(\d+))?", dtype).groups()  # type: ignore[union-attr]
    return (8 if dtype.startswith("bool") else int(bits or 64)) * int(lanes or 1)
