"""How far an executable has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """What computes a model's operators now.

    Attributes
    ----------
    generic : int
        Calls of kernels that were there before the model was seen, whose sizes are arguments.
    specialised : int
        Kernels that were compiled for the model.
    origins : dict of str to int
        How many of those come from where: "compiled", "the user's cache" and so on.
    failed : bool
        Whether the compiler failed: all stays as it is.
    """

    generic: int
    specialised: int
    origins: Mapping[str, int] = field(default_factory=dict)
    failed: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is compiled any more."""
        return self.failed or not self.generic

    def __str__(self) -> str:
        came = ", ".join(f"{count} from {origin}" for origin, count in self.origins.items())
        came = "not compiled" if self.failed else came
        return f"{self.generic} generic, {self.specialised} specialised" + (f" ({came})" if came else "")
