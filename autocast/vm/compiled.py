"""What compiling a module makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from autocast.runtime.library import Library
from autocast.runtime.program import Program


@dataclass(frozen=True)
class Compiled:
    """A compiled module.

    Attributes
    ----------
    program : Program
        What there is to know of it.
    library : Library
        Its code.
    seconds : dict[str, float]
        Compile time by phase: "lower" (to planned kernels), "generate" (machine code, by several threads); or "look up"
        and "load", where it was in the cache.
    origin : str
        "compiled", "the user's cache" or "the system's cache".
    kernels : dict of str to int
        How many kernels come from where, in the same words; nothing where the whole program was in the cache.
    """

    program: Program
    library: Library
    seconds: dict[str, float]
    origin: str = "compiled"
    kernels: dict[str, int] = field(default_factory=dict)
