"""Models: the value that every stage takes and returns, and figures about it."""

from autocast.model.value import Model

__all__ = ["Model"]
