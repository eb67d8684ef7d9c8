"""Operators of torch that do the same to each tensor of a list, as one for each: optimizers are made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

#: Those that torch has by the same name for one tensor.
_ALIKE = (
    *("abs", "acos", "add", "asin", "atan", "ceil", "cos", "cosh", "div", "erf", "erfc"),
    *("exp", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "max", "mul", "neg", "pow"),
    *("reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc"),
)


def _at_least(x: Tensor, bound: Any) -> Tensor:
    return torch.maximum(x, bound) if isinstance(bound, Tensor) else x.clamp(min=bound)


def _at_most(x: Tensor, bound: Any) -> Tensor:
    return torch.minimum(x, bound) if isinstance(bound, Tensor) else x.clamp(max=bound)


def _between(x: Tensor, y: Tensor, weight: Any) -> Tensor:
    """From the nearer end, as torch's kernel."""
    weight = weight if isinstance(weight, Tensor) else torch.full([], weight, dtype=x.dtype)
    return torch.where(weight.abs() < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


def _norm(x: Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, order, dtype=dtype)
    return norm


#: What is done to one tensor, by the name of what does it to each of a list: by operators that there are converters of.
_OF_ONE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _ALIKE},
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "addcmul": lambda x, a, b, value=1: x + value * (a * b),
    "copy": lambda x, other, non_blocking=False: other.to(x.dtype),
    "clamp_max": _at_most,
    "clamp_min": _at_least,
    "frac": lambda x: x - x.trunc(),
    "lerp": _between,
    "maximum": _at_least,
    "minimum": _at_most,
    "norm": _norm,
    "zero": lambda x: torch.full(x.shape, 0, dtype=x.dtype),
}


def _each(of_one: Callable[..., Tensor], *args: Any, **options: Any) -> list[Tensor]:
    """One call for each place of the lists; what is no list is the same in all."""
    lists = [list(arg) if isinstance(arg, list | tuple) else None for arg in args]
    count = max(len(one) for one in lists if one is not None)
    return [
        of_one(*(arg if one is None else one[place] for arg, one in zip(args, lists, strict=True)), **options)
        for place in range(count)
    ]


#: How torch's operators are split. What takes a tensor of numbers for its list stays: they are not known.
FOREACH: dict[OpOverload, Callable[..., list[Tensor]]] = {
    getattr(packet, overload): partial(_each, of_one)
    for name, of_one in _OF_ONE.items()
    for packet in [getattr(torch.ops.aten, f"_foreach_{name}")]
    for overload in packet.overloads()
    if "out" not in overload and not (name.startswith("addc") and overload == "Tensor")
}
