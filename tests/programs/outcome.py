"""What comes of a random program, or network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from autocast.errors import FallbackWarning, ImportModelError, InputError, UnsupportedError

#: Words of what `from_torch` or `to_onnx` refuses, and says why.
_REFUSED = (
    "whose elements share memory",
    "windows of unfold",
    "by way of as_strided",
    "decides by sizes",
    "Constraints violated",
    "decides by the values of a tensor",
    "torch exports it for",
    "Import the model with wider bounds",
    "writes into its inputs",
)


@dataclass(frozen=True)
class Outcome:
    """`kind`: "right", "refused", "torch's" (which fails alike), "wrong" or "raised"; and why."""

    kind: str
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it is a bug of ours."""
        return self.kind in ("wrong", "raised")


def outcome_of(run: Callable[[], Outcome]) -> Outcome:
    """What `run` returns, or comes of what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        try:
            return run()
        except (ImportModelError, InputError, UnsupportedError) as error:
            return Outcome("refused" if any(words in str(error) for words in _REFUSED) else "raised", str(error))
        except Exception as error:
            return Outcome("raised", f"{type(error).__name__}: {error}")
