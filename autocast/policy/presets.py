"""Presets: what each makes of an operator that nothing more specific decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autocast.policy.choices import Choice
from type_hints import Row

#: Operators that have no low-precision form, and why.
UNSUPPORTED = {
    "relax.nn.group_norm": "TVM refuses it in bfloat16",
    "relax.nn.prelu": "TVM refuses it in bfloat16",
    "relax.quantize": "TVM refuses it in bfloat16",
    "relax.nn.batch_norm": "its running statistics change by less than a bfloat16 can hold",
    "relax.grad.batch_norm_backward": "as batch_norm, whose saved statistics it reads",
    "relax.collective.batch_norm": "as batch_norm",
    "relax.collective.batch_norm_backward": "as batch_norm, whose statistics it reads",
    "relax.collective.reduce_scatter_start": "what processes send each other is rounded only where a user says so",
    "relax.collective.all_reduce_start": "what processes send each other is rounded only where a user says so",
}

#: Families of operators that multiply matrices: forward, and in `gradients` those that are low.
_PRODUCTS = frozenset(("products", "convolutions", "attention", "recurrent", "gradients"))


def multiplies_matrices(row: Row) -> bool:
    """Whether an operator is GEMM-like: a product, convolution, attention or recurrence, or the gradient of one."""
    return row.family in _PRODUCTS and row.label == "low"


@dataclass(frozen=True)
class Preset:
    """One preset.

    Attributes
    ----------
    name, why
        `why` is the reason that reports repeat.
    choose
        What the preset makes of the operator of a row of the tables.
    ends_at_float_conversions
        Whether what is computed from the result of an author's conversion to float32 is float32.
    parameters
        How parameters are stored where the policy does not say.
    """

    name: str
    why: str
    choose: Callable[[Row], Choice]
    ends_at_float_conversions: bool = False
    parameters: str = "float32"


def _low(row: Row) -> Choice:
    return "float32" if row.name in UNSUPPORTED else "low"


def _low_or_moved(row: Row) -> Choice:
    """Low, but for what moves data: it must not round what is read in float32 after a conversion, such as a weight."""
    return "rule" if row.family == "layout" else _low(row)


def _products(row: Row) -> Choice:
    return "widening" if multiplies_matrices(row) else "float32"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("mp0", "nothing changes", lambda row: "leave"),
        Preset("mp1", "products take low operands and give float32; all else is float32", _products),
        Preset("mp4", "everything that has a low-precision form is low", _low),
        Preset(
            "default",
            "low until the author's conversion to float32",
            _low_or_moved,
            ends_at_float_conversions=True,
        ),
        Preset("rules", "what each operator's rule says", lambda row: "rule"),
        Preset("pure", "everything that has a low-precision form is low", _low, parameters="offline"),
    )
}
