"""Huge pages for what every call streams from memory: weights.

The processor translates addresses page by page, and fetches ahead no further than a page's end. With pages of 4 KiB one
core read 21 GB/s of weights here, with pages of 2 MiB 36 GB/s. Where each weight is used a few times only, as in
inference of small batches, that is the time of the whole model.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable

import tvm_ffi

from autocast.runtime.tensors import bytes_of

HUGE_PAGE = 2 * 2**20

#: Tensors closer to each other than this are taken together: allocators leave a header and some padding between them,
#: and pages of which two weights have a part each are to be huge as well.
NEIGHBOURS = 64 * 2**10

#: Linux 6.1: "replace these pages by huge ones now", wherever they came from, whatever the system's default is.
_MADV_COLLAPSE = 25


def spans(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The whole huge pages within `ranges` (addresses: first, end), where neighbours count as one range."""
    merged: list[list[int]] = []
    for first, end in sorted(ranges):
        if merged and first - merged[-1][1] <= NEIGHBOURS:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([first, end])
    whole = ((-(-first // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE) for first, end in merged)
    return [(first, end) for first, end in whole if first < end]


def use_huge_pages(tensors: Iterable[tvm_ffi.Tensor]) -> int:
    """Move the memory of `tensors` to huge pages; how many bytes have them now. Addresses and values stay.

    It is a hint: what the system refuses (no Linux, an old one, no free huge pages, memory mapped from a file) stays as
    it is.
    """
    madvise = _madvise()
    if madvise is None:
        return 0
    ranges = ((t.data_ptr(), t.data_ptr() + bytes_of(t)) for t in tensors)
    return sum(end - first for first, end in spans(ranges) if madvise(first, end - first, _MADV_COLLAPSE) == 0)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
