"""Operators that work element by element."""

from __future__ import annotations

from autocast.operators.row import Kind, OperatorRow, rows


def _by_functions(kind: Kind, names: str) -> tuple[OperatorRow, ...]:
    """Rows of operators that vector functions of the same names compute, wherever channels are."""
    return tuple(row.but(vector=row.name.rpartition(".")[2], channels_last="elementwise") for row in rows(kind, names))


ARITHMETIC = _by_functions(
    Kind.ELEMENTWISE,
    """
    abs add ceil divide ewise_fma floor floor_divide floor_mod maximum minimum mod multiply negative round sign square
    subtract trunc
    """,
)

TRANSCENDENTAL = _by_functions(
    Kind.ELEMENTWISE,
    """
    acos acosh asin asinh atan atan2 atanh cos cosh erf exp log log_add_exp nn.expm1 nn.log1p power rsqrt sin sinh sqrt
    tan tanh sigmoid
    """,
)

ACTIVATIONS = (
    *_by_functions(Kind.ELEMENTWISE, "nn.gelu nn.gelu_tanh nn.relu nn.selu nn.silu"),
    *rows(Kind.ELEMENTWISE, "nn.leakyrelu", vector="leakyrelu", numbers=("alpha",), channels_last="elementwise"),
    *rows(Kind.ELEMENTWISE, "nn.hardtanh", vector="clip", numbers=("low", "high"), channels_last="elementwise"),
    # By two functions, one for the threshold that torch has: see `expression.operation`.
    *rows(Kind.ELEMENTWISE, "nn.softplus", channels_last="elementwise"),
    # Its slopes are along an axis that moves with the channels.
    *rows(Kind.ELEMENTWISE, "nn.prelu", channels_last="axis"),
)

#: Their bounds are arguments, and not attributes.
BOUNDED = rows(Kind.ELEMENTWISE, "clip", channels_last="elementwise")

#: What is drawn for an element depends on its place among all.
RANDOM = rows(Kind.ELEMENTWISE, "nn.seeded_dropout nn.seeded_normal nn.seeded_uniform nn.stochastic_round")

LOGIC = (
    *_by_functions(Kind.COMPARISON, "equal greater greater_equal less less_equal not_equal"),
    *_by_functions(Kind.LOGIC, "isfinite isinf isnan logical_and logical_not logical_or logical_xor"),
    *rows(Kind.LOGIC, "bitwise_and bitwise_not bitwise_or bitwise_xor left_shift right_shift"),
)

#: In float64, each by a kernel of its own.
SPECIAL = rows(
    Kind.DEFINED,
    """
    special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.digamma special.erfc special.erfcx
    special.erfinv special.frexp special.i0 special.i0e special.i1 special.i1e special.lgamma
    special.log_ndtr special.ndtri special.nextafter special.polygamma special.signbit special.zeta
    """,
)

ROWS = (*ARITHMETIC, *TRANSCENDENTAL, *ACTIVATIONS, *BOUNDED, *RANDOM, *LOGIC, *SPECIAL)
