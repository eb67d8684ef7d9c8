"""What a row kernel computes."""

from __future__ import annotations

from dataclasses import dataclass

from autocast.kernels.specs.program import Program


@dataclass(frozen=True)
class Rows:
    """A program whose steps may combine, scan or look up all that is in a row.

    Attributes
    ----------
    program
        Its steps may be reductions (`row_sum`), scans (`row_cumsum`) and picks (`row_pick`) too. Outputs have the shape
        of its space, or one element for each row.
    row_dims
        How many of the space's last dimensions are a row.
    """

    program: Program
    row_dims: int
