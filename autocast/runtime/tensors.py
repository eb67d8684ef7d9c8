"""Tensors of the virtual machine, from tensors of torch, numpy and whatever speaks DLPack, and back."""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by its name once this is loaded
import numpy as np
import tvm_ffi

from autocast.errors import InputError
from autocast.runtime.sizes import tensor_bytes
from autocast.runtime.tvm_runtime import function

#: Compiled kernels read and write whole vectors: tensors begin at multiples of this many bytes.
ALIGNMENT = 64

#: DLPack's number of the CPU.
_CPU = 1


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether `value` is a tensor of any library that speaks DLPack, whose elements lie in memory one by one.

    So is a number of numpy's, such as `array.max()`: an array without axes.
    """
    if is_torch(value) or isinstance(value, np.ma.MaskedArray):
        return not kind_of_layout(value)
    if isinstance(value, np.generic):
        return True
    return hasattr(value, "__dlpack_device__") and hasattr(value, "shape") and hasattr(value, "dtype")


def kind_of_layout(value: Any) -> str:
    """What makes a tensor's elements no array: "sparse", "nested", "quantized", "masked"; empty where nothing does."""
    if isinstance(value, np.ma.MaskedArray):
        return "masked"
    if not is_torch(value) or (value.layout is sys.modules["torch"].strided and not value.is_nested):
        return "quantized" if is_torch(value) and value.is_quantized else ""
    return "nested" if value.is_nested else "sparse"


def dtype_name(arg: Any) -> str:
    """The dtype of a tensor of torch, numpy or TVM, such as "float32"."""
    return str(arg.dtype).removeprefix("torch.")


def empty(shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """A new tensor, whose elements are anything."""
    shape = tvm_ffi.Shape([int(size) for size in shape])
    return function("runtime.TVMTensorAllocWithScope")(shape, tvm_ffi.dtype(dtype), tvm_ffi.device("cpu", 0), None)


def copy(value: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
    """A tensor of its own with the same elements."""
    made = empty(value.shape, str(value.dtype))
    copy_into(made, value)
    return made


def copy_into(target: tvm_ffi.Tensor, source: tvm_ffi.Tensor) -> None:
    """Overwrite the elements of `target` by those of a tensor of the same dtype and shape."""
    function("runtime.TVMTensorCopyFromTo")(source, target)


def from_numpy(array: np.ndarray | np.generic) -> tvm_ffi.Tensor:
    """A copy of an array, of bfloat16 (of ml_dtypes) and other dtypes that numpy's DLPack does not have, too."""
    made = empty(array.shape, str(array.dtype))
    if array.size:
        dense = np.ascontiguousarray(array)
        pointer = dense.ctypes.data_as(ctypes.c_void_p)
        function("runtime.TVMTensorCopyFromBytes")(made, pointer, dense.nbytes)
    return made


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """A copy of a tensor of the CPU as an array."""
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    if array.size:
        pointer = array.ctypes.data_as(ctypes.c_void_p)
        function("runtime.TVMTensorCopyToBytes")(tensor, pointer, array.nbytes)
    return array


def array_over(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """The memory of a dense tensor of the CPU as an array, which keeps the tensor alive."""
    size = bytes_of(tensor)
    if not size:
        return np.empty(tuple(tensor.shape), str(tensor.dtype))
    memory: Any = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
    memory._tensor = tensor  # numpy keeps the object alive that it is over
    return np.frombuffer(memory, np.uint8).view(str(tensor.dtype)).reshape(tuple(tensor.shape))


def array_of_cpu(value: Any) -> np.ndarray | None:
    """An array over the memory of a dense tensor of any library; None where that is another device's."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if is_torch(value):
        return value.detach().numpy() if value.device.type == "cpu" else None
    return array_over(to_tensor(value)) if value.__dlpack_device__()[0] == _CPU else None


def same_bits(one: tvm_ffi.Tensor, other: tvm_ffi.Tensor) -> bool:
    """Whether two tensors of one type hold the same, NaN and the signs of zeros included."""
    if one.data_ptr() == other.data_ptr():
        return True
    left, right = (array_over(tensor).reshape(-1).view(np.uint8) for tensor in (one, other))
    return bool(np.array_equal(left, right))


def within(lent: Iterable[tvm_ffi.Tensor]) -> Callable[[tvm_ffi.Tensor], bool]:
    """Whether a tensor begins in memory of `lent` ones."""
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + bytes_of(tensor)) for tensor in lent)

    def is_lent(tensor: tvm_ffi.Tensor) -> bool:
        at = bisect_right(spans, (tensor.data_ptr(), sys.maxsize)) - 1
        return at >= 0 and tensor.data_ptr() < spans[at][1]

    return is_lent


def tensor_over(array: np.ndarray) -> tvm_ffi.Tensor:
    """A dense array's memory as a tensor, which keeps the array alive; a copy where it is not aligned."""
    if not array.size or array.ctypes.data % ALIGNMENT:
        return from_numpy(array)
    memory = tvm_ffi.from_dlpack(array.reshape(-1).view(np.uint8), require_alignment=ALIGNMENT)
    shape = tvm_ffi.Shape(array.shape)
    view: tvm_ffi.Tensor = function("runtime.TVMTensorCreateView")(memory, shape, tvm_ffi.dtype(str(array.dtype)), 0)
    return view


def to_tensor(arg: Any) -> tvm_ffi.Tensor:
    """`arg` as a tensor of the virtual machine: shares memory where it is dense and aligned, else a copy.

    One without elements is made anew: torch says other strides of it than kernels expect.

    Raises
    ------
    InputError
        A tensor that is not in the CPU's memory.
    """
    if is_torch(arg):
        made = dense(arg)
        if isinstance(made, tvm_ffi.Tensor):
            return made
        return tvm_ffi.from_dlpack(made.detach(), require_alignment=ALIGNMENT, require_contiguous=True)
    if 0 in arg.shape:
        return empty(arg.shape, dtype_name(arg))
    if isinstance(arg, tvm_ffi.Tensor):
        return arg
    return from_numpy(arg) if isinstance(arg, np.ndarray | np.generic) else _from_dlpack(arg)


def to_argument(arg: Any) -> Any:
    """`arg` as a call of the virtual machine takes it: as `to_tensor` has it, or a torch tensor that the call turns
    into one, in a tenth of the time. Then what the call returns is torch tensors, too."""
    return dense(arg) if is_torch(arg) else to_tensor(arg)


def dense(arg: Any) -> Any:
    """A torch tensor itself where kernels can read it as it lies in memory; else a copy."""
    if not arg.numel():
        return empty(arg.shape, dtype_name(arg))
    if not arg.is_cpu:
        raise InputError(
            f"main: an input is on {arg.device}, expected the cpu. Call .cpu() on it, or let torch's kernels run the "
            'model where its inputs are: vm.compile(model, "cuda")'
        )
    if arg.is_conj() or arg.is_neg() or not arg.is_contiguous():
        arg = arg.detach().contiguous().resolve_conj().resolve_neg()
    pointer = arg.data_ptr()
    if not pointer:
        raise InputError("main: an input is a torch tensor without data, expected one with values: no FakeTensor")
    return arg.detach().clone() if pointer % ALIGNMENT else arg


def _from_dlpack(arg: Any) -> tvm_ffi.Tensor:
    """A tensor of some other library."""
    device, _ = arg.__dlpack_device__()
    if device != _CPU:
        raise InputError(f"main: an input is on the device {int(device)} of DLPack, expected 1, the CPU. Copy it there")
    tensor = tvm_ffi.from_dlpack(arg)
    dense = tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0
    return tensor if dense else from_numpy(np.from_dlpack(arg))


def from_tensor(value: Any, kind: str) -> Any:
    """An output as `kind`: "torch" and "tvm" share memory, "numpy" copies.

    Tuples, nested ones too, and shapes become tuples; numbers, None and objects of the virtual machine stay.
    """
    if isinstance(value, tvm_ffi.Tensor):
        if kind == "torch":
            import torch

            return torch.utils.dlpack.from_dlpack(value.__dlpack__())  # a capsule: torch asks tensors for more
        return to_numpy(value) if kind == "numpy" else value
    if isinstance(value, tvm_ffi.Shape):
        return tuple(int(size) for size in value)
    if isinstance(value, tvm_ffi.Array):  # its own iteration takes twice the time
        value = tuple(map(function("ffi.ArrayGetItem"), repeat(value), range(len(value))))
    if isinstance(value, tuple | list):
        return tuple([from_tensor(field, kind) for field in value])
    return value


def kind_of(args: Sequence[Any]) -> str:
    """What outputs are returned as: "torch" if any input is a torch tensor, else "numpy" if any is, else "tvm"."""
    if any(is_torch(arg) for arg in args):
        return "torch"
    if any(isinstance(arg, np.ndarray | np.generic) for arg in args):
        return "numpy"
    return "tvm" if args else "numpy"


def memory_of(tensor: Any) -> int:
    """What torch tensors that lie in one memory have in common."""
    return int(tensor.untyped_storage()._cdata)


def bytes_of(tensor: Any) -> int:
    """Bytes of the elements of a tensor, or of what describes one."""
    return tensor_bytes(tensor.shape, dtype_name(tensor))
