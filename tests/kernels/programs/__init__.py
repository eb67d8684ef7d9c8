"""Random programs, as Relax and as torch, for tests that compare what is compiled with float64."""

from tests.kernels.programs.program import Program
from tests.kernels.programs.strategy import programs

__all__ = ["Program", "programs"]
