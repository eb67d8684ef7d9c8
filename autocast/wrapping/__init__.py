"""`autocast.wrap`: a torch module that its program calls as before, and that our kernels compute."""

from autocast.wrapping.wrapped import wrap

__all__ = ["wrap"]
