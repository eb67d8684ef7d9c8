"""What code that was compiled under AUTOCAST_DEBUG=poison calls: it poisons memory, and guards what is behind it."""

from __future__ import annotations

import ctypes

import tvm_ffi

from autocast.errors import AutocastError
from autocast.runtime.tensors import bytes_of

#: Makes a tensor NaN, or a large number.
POISON = "autocast.poison"

#: Writes what nobody may change behind a tensor.
GUARDED = f"{POISON}.guard"

#: Checks that nobody did: of a tensor, and the names of its kernels.
WHOLE = f"{POISON}.whole"

#: How many bytes behind a tensor are guarded.
GUARD = 1024

#: All bits set are a NaN in every floating-point dtype; 0x7F in every byte is a large positive integer.
_NAN, _LARGE = 0xFF, 0x7F

_BYTE = 0xA5
_UNTOUCHED = bytes([_BYTE]) * GUARD


@tvm_ffi.register_global_func(POISON)
def _poison(tensor: tvm_ffi.Tensor) -> None:
    ctypes.memset(tensor.data_ptr(), _NAN if "float" in str(tensor.dtype) else _LARGE, bytes_of(tensor))


@tvm_ffi.register_global_func(GUARDED)
def _guard(tensor: tvm_ffi.Tensor) -> None:
    ctypes.memset(tensor.data_ptr() + bytes_of(tensor), _BYTE, GUARD)


@tvm_ffi.register_global_func(WHOLE)
def _check(tensor: tvm_ffi.Tensor, kernels: str) -> None:
    behind = ctypes.string_at(tensor.data_ptr() + bytes_of(tensor), GUARD)
    if behind != _UNTOUCHED:
        changed = [i for i, byte in enumerate(behind) if byte != _BYTE]
        raise AutocastError(
            f"AUTOCAST_DEBUG=poison: {tensor.dtype} tensor of shape {(*tensor.shape,)}: a kernel wrote behind it, at "
            f"byte {changed[0]} and {len(changed) - 1} others of the {GUARD} that are watched; expected none to; these "
            f"kernels have it: {kernels or 'none'}. One of them is wrong: please report it with the model"
        )
