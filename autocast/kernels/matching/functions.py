"""Which function of vectors computes an elementwise call."""

from __future__ import annotations

import math

from tvm import relax

from autocast.ir import number_of
from autocast.operators import row_of

#: Where softplus becomes the identity, to the last place of float32.
_SOFTPLUS_THRESHOLD = 17.0

#: Functions for powers of which the exponent is known.
POWERS = {2.0: "square", 3.0: "cube", 4.0: "fourth", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def operation(call: relax.Expr) -> tuple[str, tuple[relax.Expr | float, ...]] | None:
    """The function that computes an elementwise operator, and its operands; None for what no function computes.

    Operands are tensors, or numbers where the operator has attributes (the slope of leakyrelu) or constants.
    """
    row = row_of(call)
    if row is None:
        return None
    if row.name == "relax.nn.softplus":
        beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
        plain = beta == 1.0 and threshold >= _SOFTPLUS_THRESHOLD
        return ("softplus", (call.args[0],)) if plain else ("softplus_scaled", (call.args[0], beta, threshold))
    if row.name == "relax.clip":
        low, high = (float(bound.value) for bound in call.args[1:])
        if -math.inf in (low, -high):  # between one bound and no other
            return ("maximum", (call.args[0], low)) if high == math.inf else ("minimum", (call.args[0], high))
        return "clip", (call.args[0], low, high)
    if row.name == "relax.power" and (exponent := number_of(call.args[1])) in POWERS:
        return POWERS[exponent], (call.args[0],)
    if not row.vector:
        return None
    return row.vector, (*call.args, *(float(getattr(call.attrs, number)) for number in row.numbers))
