"""What random modules are written with: variables and their types, and a writer of TVMScript."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

_T = TypeVar("_T")

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16")
INTEGERS = ("int64", "int64", "int32", "int8", "uint8")
#: The most elements of a tensor: what is compiled and run must take no time.
MOST = 3000


class NothingFits(Exception):
    """No variable is what a binding needs."""


@dataclass(frozen=True)
class Dim:
    """An extent: its value when the module runs, and what stands for it in the module."""

    value: int
    text: str

    @classmethod
    def of(cls, value: int) -> Dim:
        """One that is known now."""
        return cls(value, str(value))

    @property
    def known(self) -> bool:
        """Whether it is a number in the module, too."""
        return self.text == str(self.value)

    def __mul__(self, other: Dim) -> Dim:
        if self.known and other.known:
            return Dim.of(self.value * other.value)
        return Dim(self.value * other.value, f"({self.text}) * ({other.text})")

    def __add__(self, other: Dim) -> Dim:
        if self.known and other.known:
            return Dim.of(self.value + other.value)
        return Dim(self.value + other.value, f"{self.text} + {other.text}")


Dims = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Var:
    """A variable: a tensor, a tuple (`fields`) or a shape.

    Attributes
    ----------
    bound
        Of integers: all are in 0, ..., bound - 1, so that they are indices. 0 where nothing is known.
    """

    name: str
    dims: Dims = ()
    dtype: str = ""
    bound: int = 0
    fields: tuple[Var, ...] | None = None
    is_shape: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.fields is None and not self.is_shape

    @property
    def is_float(self) -> bool:
        return self.is_tensor and "float" in self.dtype

    @property
    def known(self) -> bool:
        """Whether all of its extents are numbers."""
        return all(part.known for part in self.fields) if self.fields is not None else all(d.known for d in self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> int:
        return count(self.dims)

    def named(self, name: str) -> Var:
        """The same, of another name."""
        return Var(name, self.dims, self.dtype, self.bound, self.fields, self.is_shape)

    def annotation(self, *, quoted: bool = False) -> str:
        """Its type, with symbolic extents in quotes in a signature."""
        if self.fields is not None:
            return f"R.Tuple({', '.join(part.annotation(quoted=quoted) for part in self.fields)})"
        parts = [f'"{d.text}"' if quoted and not d.known else d.text for d in self.dims]
        if self.is_shape:
            return f"R.Shape([{', '.join(parts)}])"
        return f'R.Tensor(({"".join(p + ", " for p in parts)}), "{self.dtype}")'

    def same_type(self, other: Var) -> bool:
        """Whether it may stand where the other stands."""
        return self.annotation() == other.annotation()


def count(dims: Iterable[Dim]) -> int:
    """The number of elements."""
    result = 1
    for dim in dims:
        result *= dim.value
    return result


@dataclass
class Shared:
    """What all functions of a module share."""

    random: Random
    low: str
    has_vague_types: bool = False
    functions: list[str] = field(default_factory=list)
    callables: list[tuple[str, tuple[Var, ...], Var]] = field(default_factory=list)
    number: int = 0


class Writer:
    """Writes the body of one function; `pool` holds what the next binding may use."""

    def __init__(self, shared: Shared, pool: Iterable[Var], indent: int, sizes: Sequence[str] = ()) -> None:
        self.shared, self.random = shared, shared.random
        self.pool, self.lines, self.indent = list(pool), [], indent
        self.sizes = list(sizes)
        self.locals: list[tuple[str, tuple[Var, ...], Var]] = []
        self.depth = 0
        self.in_dataflow = False

    def callables(self) -> list[tuple[str, tuple[Var, ...], Var]]:
        """The functions that can be called here: name, parameters, result. Those of the module have no sizes in common
        with this one, so theirs are numbers."""
        return [c for c in self.shared.callables if all(param.known for param in c[1])] + self.locals

    # -- choices -------------------------------------------------------------------------------------------------------

    def one_of(self, options: Iterable[_T]) -> _T:
        """Some of `options`."""
        options = list(options)
        if not options:
            raise NothingFits
        return self.random.choice(options)

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.random.randrange(one_in) == 0

    def pick(self, condition: Callable[[Var], Any] = lambda _: True) -> Var:
        """Some tensor; late ones are likelier."""
        fits = [var for var in self.pool if var.is_tensor and condition(var)]
        return self.one_of(fits[-3:] * 2 + fits)

    def pick_float(self, condition: Callable[[Var], Any] = lambda _: True) -> Var:
        """Some tensor of floats."""
        return self.pick(lambda var: var.is_float and condition(var))

    def axis(self, var: Var, condition: Callable[[Dim], Any] = lambda _: True) -> int:
        """Some axis whose extent fits."""
        return self.one_of(axis for axis, dim in enumerate(var.dims) if condition(dim))

    def signed(self, axis: int, ndim: int) -> int:
        """The same axis, sometimes counted from the end."""
        return axis - ndim if self.chance(3) else axis

    def number_of(self, options: Sequence[float], dtype: str) -> str:
        """A literal."""
        return f'R.const({self.one_of(options)}, "{dtype}")'

    def index(self, dims: Dims, bound: int) -> Var:
        """Indices below `bound`: a variable if there is one, or a constant."""
        fits = [v for v in self.pool if v.is_tensor and v.dtype in ("int64", "int32") and 0 < v.bound <= bound]
        fits = [v for v in fits if [d.text for d in v.dims] == [d.text for d in dims]]
        if fits and not self.chance(3):
            return self.one_of(fits)
        if not all(d.known for d in dims) or bound <= 0:
            raise NothingFits
        return Var(self.constant([d.value for d in dims], "int64", bound), dims, "int64", bound)

    def constant(self, shape: Sequence[int], dtype: str, bound: int) -> str:
        """Whole numbers below `bound`, as a name that `constants` has the values of."""
        return self.metadata(self._nested(list(shape), bound), dtype)

    def _nested(self, shape: list[int], bound: int) -> Any:
        if not shape:
            return self.random.randrange(bound)
        return [self._nested(shape[1:], bound) for _ in range(shape[0])]

    def metadata(self, value: Any, dtype: str) -> str:
        """A constant of several numbers."""
        return f'R.const({value!r}, "{dtype}")' if not isinstance(value, list) else f'K({value!r}, "{dtype}")'

    # -- writing -------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, prefix: str = "v") -> str:
        self.shared.number += 1
        return f"{prefix}{self.shared.number}"

    def bind(self, value: str, dims: Iterable[Dim], dtype: str, bound: int = 0, *, keep: bool = True) -> Var:
        """Bind an expression to a new variable, which later bindings may use if `keep`."""
        var = Var(self.name(), tuple(dims), dtype, bound)
        if var.size > MOST or var.ndim > 5:
            raise NothingFits
        return self.add(var, value, keep=keep)

    def add(self, var: Var, value: str, *, keep: bool = True) -> Var:
        """The same, of any type."""
        self.line(f"{var.name} = {value}")
        if keep:
            self.pool.append(var)
        return var
