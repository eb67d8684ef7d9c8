"""The size of all gradients together, which tells whether they are finite and by how much to shorten them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tvm import relax

op = relax.op


def squared_norm(builder: relax.BlockBuilder, gradients: Sequence[relax.Expr]) -> relax.Var:
    """The sum of the squares of all elements of all gradients, a 0-d float32 tensor.

    It is finite if and only if all of them are, unless one exceeds 1e19 in size: no gradient to go by either.
    """
    sums = [builder.emit(op.sum(op.multiply(gradient, gradient)), "squares") for gradient in gradients]
    return builder.emit(reduce(op.add, sums), "squared_norm")


def is_finite(squared: relax.Expr) -> relax.Expr:
    """Whether a sum of squares is finite: NaN compares with nothing."""
    return op.less(squared, relax.const(float("inf"), "float32"))


def clip_factor(norm: relax.Expr, clip_norm: float) -> relax.Expr:
    """What to multiply all gradients by, so that their norm is at most `clip_norm` (Pascanu et al., 2013), as torch."""
    small = relax.const(1e-6, "float32")
    return op.minimum(relax.const(clip_norm, "float32") / (norm + small), relax.const(1.0, "float32"))
