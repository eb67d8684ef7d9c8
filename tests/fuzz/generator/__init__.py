"""Random Relax modules: `generate(seed)`."""

from tests.fuzz.generator.module import Case, draw, generate, parse

__all__ = ["Case", "draw", "generate", "parse"]
