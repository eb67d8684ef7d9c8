"""Models: the value that every stage takes and returns, and figures about it."""

from autocast.model.value import Model, load

__all__ = ["Model", "load"]
