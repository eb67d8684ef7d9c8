"""What code that was compiled under AUTOCAST_DEBUG=poison calls: it makes memory NaN, or a large number."""

from __future__ import annotations

import ctypes

import tvm_ffi

from autocast.runtime.program import POISON
from autocast.runtime.tensors import bytes_of

#: All bits set are a NaN in every floating-point dtype; 0x7F in every byte is a large positive integer.
_NAN, _LARGE = 0xFF, 0x7F


@tvm_ffi.register_global_func(POISON)
def _poison(tensor: tvm_ffi.Tensor) -> None:
    ctypes.memset(tensor.data_ptr(), _NAN if "float" in str(tensor.dtype) else _LARGE, bytes_of(tensor))
