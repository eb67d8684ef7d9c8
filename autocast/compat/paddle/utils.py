"""`paddle.utils`: names of variables, which are torch's here, so that there is nothing to guard."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from autocast.compat.names import named


class unique_name:
    """`paddle.utils.unique_name`: parameters are called what their torch modules call them."""

    @staticmethod
    def guard(_prefix: str | None = None) -> AbstractContextManager[None]:
        """A context that changes nothing: two programs of one module have the same names already."""
        return nullcontext()


__all__ = ["unique_name"]

__getattr__ = named(__name__, __all__)
