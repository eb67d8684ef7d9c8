"""Sizes that the values of tensors decide, found and checked by compiled code: packed functions."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence

import numpy as np
import tvm_ffi

from autocast.errors import InputError
from autocast.runtime.tensors import array_over, from_numpy

#: The packed functions, as a module calls them.
CHECK, NONZERO = "autocast.found_sizes", "autocast.nonzero"

#: How both sides of a condition may relate.
RELATIONS = {"<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne}


@tvm_ffi.register_global_func(CHECK)
def _checked(conditions: str, sizes: Sequence[int], sides: Sequence[int]) -> tvm_ffi.Shape:
    """The sizes, if all conditions hold: pairs of a relation and its text, as JSON, for each two of the sides.

    Raises
    ------
    InputError
        One does not.
    """
    for at, (relation, text) in enumerate(json.loads(str(conditions))):
        left, right = sides[2 * at], sides[2 * at + 1]
        if not RELATIONS[relation](left, right):
            raise InputError(
                f"main: the values of a tensor decide a size so that {left} {relation} {right} does not hold; expected "
                f"{text}, which the torch module checks. Pass values for which that module runs"
            )
    return tvm_ffi.Shape(sizes)


@tvm_ffi.register_global_func(NONZERO)
def _nonzero(x: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
    """The places of what is not 0, int64 with a row for each axis: `relax.nonzero`, without TVM's Python."""
    return from_numpy(np.stack(np.atleast_1d(array_over(x)).nonzero()))
