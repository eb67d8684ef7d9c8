"""Random programs that torch runs for several sizes: statement by statement, each tried as it is added."""

from __future__ import annotations

import random
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.programs.statements import KINDS, WRITES

#: The inputs' sizes a and b: those of the example, and others.
SIZES = ((5, 6), (7, 4))

#: The inputs' dimensions of size a and b, as `from_torch` takes them.
DYNAMIC = {"a": [("x", 0), ("y", 1)], "b": [("x", 1), ("y", 2), ("z", 0)]}

_SUBSCRIPTS = (":", "1:", ":-1", "::2", "1:3", ":2", "-2:", "None", ":", "0", "-1")

#: No tensor has more elements, and no element is larger: rounding says nothing of such.
_ELEMENTS, _LARGEST = 4000, 100.0


@dataclass(frozen=True)
class Program:
    """The body of a function of tensors x (a, b), y (2, a, b) and z (b, 4), all float32, and what it returns."""

    lines: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def text(self) -> str:
        """The function, in Python."""
        body = "\n".join([*self.lines, f"return {', '.join(self.results)},"])
        return f"def program(x, y, z):\n{textwrap.indent(body, '    ')}\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """It, to be called."""
        known: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.text, "<program>", "exec"), known)
        made: Callable[..., tuple[torch.Tensor, ...]] = known["program"]
        return made

    def smaller(self) -> Iterator[Program]:
        """The program without one of its statements or results."""
        for i in reversed(range(len(self.lines))):
            yield Program((*self.lines[:i], *self.lines[i + 1 :]), self.results)
        for i in range(len(self.results)) if len(self.results) > 1 else ():
            yield Program(self.lines, (*self.results[:i], *self.results[i + 1 :]))


def inputs(sizes: tuple[int, int], *, gradients: bool = False) -> list[torch.Tensor]:
    """Random values for x, y and z, the same for the same sizes."""
    a, b = sizes
    generator = torch.Generator().manual_seed(a)
    shapes: tuple[tuple[int, ...], ...] = ((a, b), (2, a, b), (b, 4))
    return [torch.randn(shape, generator=generator, requires_grad=gradients) for shape in shapes]


def generate(seed: int, length: int = 7, *, gradients: bool = False) -> Program:
    """A program of so many statements. One that is differentiated writes into no input."""
    source = random.Random(seed)
    lines = ["x, y, z = x * 1.0, y * 1.0, z * 1.0"] if gradients or source.random() < 0.5 else []
    made = ["x"]
    for _ in range(40 * length):
        values = _run(lines, SIZES[0], gradients)
        kind = source.choices(list(KINDS), list(KINDS.values()))[0]
        statement = _filled(source, source.choice(kind), values[-4:] if source.random() < 0.7 else values)
        name = f"t{len(made)}"
        line = statement if kind is WRITES else f"{name} = {statement}"
        if source.random() < (0.15 if kind is WRITES else 0.04):
            line = f"with torch.no_grad(): {line}"
        if _is_right([*lines, line], gradients):
            lines.append(line)
            made += [] if kind is WRITES else [name]
        if len(lines) >= length:
            break
    results = [*made[-3:], *(["x"] if source.random() < 0.3 else [])]
    return Program(tuple(lines), tuple(dict.fromkeys(results)))


def _filled(source: random.Random, statement: str, values: Sequence[tuple[str, torch.Tensor]]) -> str:
    (a, tensor), (b, _) = source.choice(values), source.choice(values)
    rank = tensor.ndim
    d, e = (source.randrange(-rank, rank) if rank else 0 for _ in range(2))
    order = source.sample(range(rank), rank)
    subscripts = [source.choice(_SUBSCRIPTS) for _ in range(source.randint(1, max(1, rank)))]
    return statement.format(
        a=a, b=b, d=d, e=e, i=source.choice([0, 1, -1]), order=", ".join(map(str, order)), s=", ".join(subscripts)
    )


def _run(lines: Sequence[str], sizes: tuple[int, int], gradients: bool) -> list[tuple[str, torch.Tensor]]:
    """The tensors that there are after these lines, by name."""
    given = dict(zip("xyz", inputs(sizes, gradients=gradients), strict=True))
    known: dict[str, Any] = {"torch": torch, "F": F, **given}
    exec("\n".join(lines), known)
    return [(name, value) for name, value in known.items() if isinstance(value, torch.Tensor)]


def _is_right(lines: Sequence[str], gradients: bool) -> bool:
    """Whether torch runs these lines, and differentiates them, to numbers that can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            for sizes in SIZES:
                values = dict(_run(lines, sizes, gradients))
                if not all(_can_be_compared(value) for value in values.values()):
                    return False
                if gradients:
                    _differentiate(values)
        except (RuntimeError, IndexError, ValueError, TypeError, UserWarning):  # of torch, which does no such thing
            return False
    return True


def _can_be_compared(value: torch.Tensor) -> bool:
    return 0 < value.numel() <= _ELEMENTS and bool(value.isfinite().all() and (value.abs() <= _LARGEST).all())


def _differentiate(values: Mapping[str, torch.Tensor]) -> None:
    """Raise what torch raises where what is saved is written later."""
    sums = [value.sum() for value in values.values() if value.requires_grad]
    sum(sums[1:], sums[0]).backward()
