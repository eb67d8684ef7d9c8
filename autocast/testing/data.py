"""Random inputs, as pairs: a torch tensor, and a numpy array of the same values that shares its memory.

Values come from torch's global generator: `torch.manual_seed(0)` repeats them.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import torch

from autocast.errors import InputError
from autocast.messages import check_value, is_count

Pair = tuple[torch.Tensor, np.ndarray]


def randint(shape: int | Sequence[int], *, low: int = 0, high: int = 10000, dtype: str = "int64") -> Pair:
    """Integers drawn uniformly from `low` to `high` (excluded), of an integer or floating-point `dtype`."""
    if low >= high:
        raise InputError(f"randint: low is {low} and high is {high}, expected low < high")
    return _pair(torch.randint(low, high, _shape(shape)).to(_torch_dtype(dtype)))


def randn_torch(
    shape: int | Sequence[int],
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Pair:
    """Normally distributed numbers, rounded to `dtype`; only the torch tensor can require a gradient."""
    tensor = (torch.randn(_shape(shape)) * std + mean).to(_torch_dtype(dtype))
    return tensor.requires_grad_(requires_grad), _pair(tensor.detach())[1]


def one_hot_torch(size: int, num_classes: int) -> Pair:
    """Random labels for a classification loss: class indices, int64, of shape (size,).

    RAF's name is kept; like RAF's, the labels are indices, not one-hot vectors.
    """
    return randint((size,), high=num_classes)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else shape
    check_value("shape", "sizes", sizes, lambda given: all(map(is_count, given)), InputError, "sizes: 3, or (2, 3)")
    return tuple(sizes)


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{name!r} is no dtype of torch; expected a name such as 'float32', 'bfloat16' or 'int64'")
    return dtype


def _pair(tensor: torch.Tensor) -> Pair:
    if tensor.dtype == torch.bfloat16:  # numpy knows it through ml_dtypes only
        return tensor, tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor, tensor.numpy()
