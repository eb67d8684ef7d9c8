"""Operators of RAF's that work on recorded results."""

from autocast.compat.raf._op import sym

__all__ = ["sym"]
