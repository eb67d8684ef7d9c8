"""Derived operators: patterns that are one operator to their user, with arguments and a rule of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from type_hints.errors import CastingRuleError
from type_hints.helpers import castable_dtype
from type_hints.hints import Hint
from type_hints.overrides import active_rule

_ADD = tvm.ir.Op.get("relax.add")


@dataclass(frozen=True)
class DerivedCall:
    """A call seen as the operator that its user means.

    Attributes
    ----------
    name
        The derived operator, such as "relax.bias_add".
    arguments
        Its arguments: expressions of the real call, in the derived operator's order; None for an argument
        that the real call does not have.
    positions
        For each argument of the real call, its index in `arguments`.
    """

    name: str
    arguments: tuple[Any, ...]
    positions: tuple[int, ...]

    def real_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """Hints for the derived arguments (and perhaps the result) as hints for the real call's.

        Raises
        ------
        CastingRuleError
            The number of hints is neither that of the derived arguments nor one more.
        """
        count = len(self.arguments)
        if len(hints) not in (count, count + 1):
            raise CastingRuleError(
                f"the rule of {self.name} gave {len(hints)} hints, expected {count} (one for each of its "
                f"arguments) or {count + 1} (one more for the result)"
            )
        return [*(hints[position] for position in self.positions), *hints[count:]]


def derived_name(call: Any) -> DerivedCall | None:
    """The derived operator that a call is, or None.

    `relax.bias_add(data, bias, axis)` is an `add`, in either order, of a 1-D float tensor to the last axis of
    a float tensor of higher rank, or of one such as (1, C, 1, 1) to the second axis, as convolutions have it; the axis
    has no expression. Where a `CustomTypeHint` block
    names `relax.add` and none names `relax.bias_add`, the call stays an `add`, so that the block concerns it.

    Parameters
    ----------
    call
        A `relax.Call` whose arguments have types.
    """
    if not call.op.same_as(_ADD):
        return None
    for data, bias, positions in ((*call.args, (0, 1)), (*reversed(call.args), (1, 0))):
        if _is_bias(bias.ty, data.ty):
            if active_rule("relax.add") is not None and active_rule("relax.bias_add") is None:
                return None
            return DerivedCall("relax.bias_add", (data, bias, None), positions)
    return None


def _is_bias(bias: Any, data: Any) -> bool:
    """Whether the types of two summands are those of a bias, and of what it is added to."""
    if not (isinstance(bias, relax.TensorType) and isinstance(data, relax.TensorType)):
        return False
    if castable_dtype(bias) is None:
        return False
    if bias.ndim == 1:
        return data.ndim > 1 and _spans_last_axis(bias, data)
    return data.ndim > 2 and _spans_channels(bias, data)


def _spans_channels(bias: Any, data: Any) -> bool:
    """Whether a tensor such as (1, C, 1, 1) is broadcast along all axes but the second one."""
    if not (isinstance(bias.shape, relax.ShapeExpr) and isinstance(data.shape, relax.ShapeExpr)):
        return False
    extents = list(data.shape.values)
    sizes = list(bias.shape.values)[-(len(extents) - 1) :]  # of the channels and what follows
    if len(sizes) != len(extents) - 1 or not all(map(_is_one, [*bias.shape.values[: -len(sizes)], *sizes[1:]])):
        return False
    # Where nothing is broadcast, both summands look alike.
    is_broadcast = not all(map(_is_one, [extents[0], *extents[2:]]))
    return is_broadcast and bool(tvm_ffi.structural_equal(sizes[0], extents[1]))


def _is_one(size: Any) -> bool:
    return isinstance(size, tvm.tirx.IntImm) and size.value == 1


def _spans_last_axis(bias_type: Any, data_type: Any) -> bool:
    """False where the 1-D tensor is known to be broadcast along the last axis, or the data along it."""
    bias_shape, data_shape = bias_type.shape, data_type.shape
    if not (isinstance(bias_shape, relax.ShapeExpr) and isinstance(data_shape, relax.ShapeExpr)):
        return True
    bias_length, data_length = bias_shape.values[0], data_shape.values[-1]
    if isinstance(bias_length, tvm.tirx.IntImm) and isinstance(data_length, tvm.tirx.IntImm):
        return bias_length.value == data_length.value
    # A length known to be 1 beside one known only at run time is broadcast.
    return not any(isinstance(length, tvm.tirx.IntImm) and length.value == 1 for length in (bias_length, data_length))
