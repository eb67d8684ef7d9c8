"""Sizes that are known now or at run time: integers, and polynomials in named dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

#: The dimensions that a term multiplies, in order.
Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of named dimensions, each with an integer factor; `sized` makes integers of constant ones."""

    terms: tuple[tuple[Names, int], ...]

    def __add__(self, other: Size) -> Size:
        return sized(dict(self.terms), _terms(other))

    def __mul__(self, other: Size) -> Size:
        products: list[dict[Names, int]] = [
            {tuple(sorted(a + b)): x * y} for a, x in self.terms for b, y in _terms(other).items()
        ]
        return sized(*products)

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__


#: A number of elements or a distance between them.
Size: TypeAlias = int | Polynomial


def dimension(dim: int | str) -> Size:
    """A dimension: a number, or the name of one that is known at run time."""
    return dim if isinstance(dim, int) else Polynomial((((dim,), 1),))


def sized(*parts: dict[Names, int]) -> Size:
    """The sum of some terms."""
    total: dict[Names, int] = {}
    for part in parts:
        for names, factor in part.items():
            total[names] = total.get(names, 0) + factor
    terms = tuple(sorted((names, factor) for names, factor in total.items() if factor))
    if not terms or [names for names, _ in terms] == [()]:
        return terms[0][1] if terms else 0
    return Polynomial(terms)


def evaluated(size: Size, dims: dict[str, Any]) -> Any:
    """The value of `size` where the named dimensions have the values `dims`."""
    if isinstance(size, int):
        return size
    total: Any = 0
    for names, factor in size.terms:
        product: Any = factor
        for name in names:
            product = dims[name] * product
        total = product + total
    return total


def _terms(size: Size) -> dict[Names, int]:
    return dict(size.terms) if isinstance(size, Polynomial) else {(): size}
