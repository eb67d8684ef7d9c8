"""Text generation: a language model of transformers with its keys and values kept between calls, on our kernels."""

from autocast.generation.generator import Generator

__all__ = ["Generator"]
