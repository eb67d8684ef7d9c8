"""Sizes that are known now or at run time: integers, and polynomials in named dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx
from tvm_ffi import structural_equal

from autocast.ir import same_shape
from autocast.kernels.specs.program import Dim

#: The dimensions that a term multiplies, in order.
Factors: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of named dimensions, each with an integer factor; `sized` makes integers of constant ones."""

    terms: tuple[tuple[Factors, int], ...]

    def __add__(self, other: Size) -> Size:
        return sized(dict(self.terms), _terms(other))

    def __mul__(self, other: Size) -> Size:
        products: list[dict[Factors, int]] = [
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


def sized(*parts: dict[Factors, int]) -> Size:
    """The sum of some terms."""
    total: dict[Factors, int] = {}
    for part in parts:
        for names, factor in part.items():
            total[names] = total.get(names, 0) + factor
    terms = tuple(sorted((names, factor) for names, factor in total.items() if factor))
    if not terms or [names for names, _ in terms] == [()]:
        return terms[0][1] if terms else 0
    return Polynomial(terms)


def ratio(size: Size, part: Size) -> Size | None:
    """`size / part`, where `part` is one product; None where that is no whole number for all named dimensions."""
    ((names, factor),) = _terms(part).items()
    divided: dict[Factors, int] = {}
    for own, number in _terms(size).items():
        left = Counter(own)
        left.subtract(names)
        if factor == 0 or number % factor or min(left.values(), default=0) < 0:
            return None
        divided[tuple(left.elements())] = number // factor
    return sized(divided)


def known(size: Size) -> int | None:
    """The number, if it is one."""
    return size if isinstance(size, int) else None


def named_in(sizes: Iterable[Size]) -> set[str]:
    """The run-time dimensions that occur in `sizes`."""
    return {name for size in sizes if isinstance(size, Polynomial) for names, _ in size.terms for name in names}


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


def _terms(size: Size) -> dict[Factors, int]:
    return dict(size.terms) if isinstance(size, Polynomial) else {(): size}


def strides_of(extents: Sequence[Size]) -> tuple[Size, ...]:
    """Elements between neighbours along each axis of a compact tensor."""
    strides: list[Size] = []
    below: Size = 1
    for extent in reversed(extents):
        strides.append(below)
        below = below * extent
    return tuple(reversed(strides))


def _is_same(one: tirx.Expr, other: tirx.Expr) -> bool:
    return same_shape((one,), (other,))


class DimensionNames:
    """Names for the run-time dimensions of one kernel: d0, d1 and so on, in the order in which they are met."""

    def __init__(self) -> None:
        self.known: list[tirx.Expr] = []

    def dim(self, dim: Any) -> Dim:
        """A dimension of a Relax shape, as kernels spell it."""
        if isinstance(dim, int | tirx.IntImm):
            return int(dim)
        for same in (structural_equal, _is_same):  # a proof takes long, and most are written alike
            for number, known in enumerate(self.known):
                if same(known, dim):
                    return f"d{number}"
        self.known.append(dim)
        return f"d{len(self.known) - 1}"

    def sizes(self, shape: Sequence[Any]) -> tuple[Size, ...]:
        """The dimensions of a Relax shape."""
        return tuple(dimension(self.dim(dim)) for dim in shape)


class FactorNames(DimensionNames):
    """The same, where a product of dimensions counts as its factors: `2 * b` is twice what `b` is."""

    def sizes(self, shape: Sequence[Any]) -> tuple[Size, ...]:
        return tuple(map(self._size, shape))

    def _size(self, dim: Any) -> Size:
        return self._size(dim.a) * self._size(dim.b) if isinstance(dim, tirx.Mul) else dimension(self.dim(dim))
