"""Results that are stored past the caches: when that pays, and the kernels that store them so.

A store into the caches reads the line from memory first, although all of it is overwritten. What is too large to be
found there later is better sent past them: a third less passes through memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import tvm
from tvm import tirx

from autocast.kernels.backend import OVERWRITING
from autocast.kernels.specs.program import Dim

#: The least result that is stored past the caches, bytes: with what it is computed from it fills one of 32 MiB, and
#: the next kernel reads it from memory either way.
FAR_BYTES = 3 << 22

#: The narrowest vectors that are, bytes: a line that is put together of more than two is no faster than one in a cache.
WIDE_BYTES = 32


def streamed(results: Sequence[tuple[Sequence[Dim], str]], lanes: int, least: int = 0) -> frozenset[int]:
    """Which of a kernel's results, given as (shape, dtype), are stored past the caches in whole vectors of `lanes`.

    All that are wide enough, if together they are far, and have `least` bytes: what is known at run time counts as 1.
    """
    widths = [tvm.DataType(dtype).itemsize for _, dtype in results]
    sizes = [math.prod(dim for dim in shape if isinstance(dim, int)) for shape, _ in results]
    far = sum(map(operator.mul, sizes, widths)) >= max(least, FAR_BYTES)
    return frozenset(i for i, width in enumerate(widths) if far and width * lanes >= WIDE_BYTES)


def with_overwriting(generate: Callable[[frozenset[int]], tirx.PrimFunc], far: frozenset[int]) -> tirx.PrimFunc:
    """The kernel `generate(far)`, and with it the one to take for results in place of operands."""
    near = generate(frozenset())
    return generate(far).with_attr(OVERWRITING, near) if far else near
