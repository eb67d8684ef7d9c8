"""Random data in pairs, and comparisons."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from autocast import testing
from autocast.compat.names import check_device
from autocast.errors import InputError
from autocast.vm import DEVICES

#: A torch tensor, as RAF's array is here, and a numpy array of the same values.
Pair = tuple[torch.Tensor, np.ndarray]


def get_testable_devices() -> list[str]:
    """The devices that there are."""
    return list(DEVICES)


def randint(
    shape: int | Sequence[int], *, low: int = 0, high: int | None = None, device: str = "cpu", dtype: str = "int64"
) -> Pair:
    """Integers from `low` to `high` (excluded), or from 0 to `low` where `high` is None, and the same in numpy."""
    check_device(device, "device")
    low, high = (0, low) if high is None else (low, high)
    return testing.randint(shape, low=low, high=high, dtype=dtype)


def randn(
    shape: int | Sequence[int],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    positive: bool = False,
    requires_grad: bool = False,
) -> Pair:
    """Normally distributed numbers, or their magnitudes and a little more with `positive`; the same in numpy."""
    tensor, _ = randn_torch(shape, device=device, dtype=dtype, positive=positive)
    return tensor.clone().requires_grad_(requires_grad), numpy(tensor)


def randn_torch(
    shape: int | Sequence[int],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    requires_grad: bool = False,
    mean: float = 0.0,
    std: float = 1.0,
    positive: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normally distributed numbers, twice: RAF's array, which is a torch tensor here, and one for torch."""
    check_device(device, "device")
    tensor, _ = testing.randn_torch(shape, mean=mean, std=std, dtype=dtype)
    if positive:
        tensor = tensor.abs() + 1e-5
    return tensor.clone().requires_grad_(requires_grad), tensor.clone().requires_grad_(requires_grad)


def one_hot_torch(
    size: int | Sequence[int], num_classes: int, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random class indices, int64, twice: RAF's array, which is a torch tensor here, and one for torch."""
    check_device(device, "device")
    labels, _ = testing.randint(size, high=num_classes)
    return labels, labels.clone()


def numpy(x: Any) -> np.ndarray:
    """A tensor, an array or a number as a numpy array."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
    if np.isscalar(x) or isinstance(x, np.ndarray):
        return np.asarray(x)
    if hasattr(x, "numpy"):
        return x.numpy()
    raise InputError(f"numpy: got a {type(x).__name__}, expected a tensor, an array or a number; try one field of it")


def check(
    m_x: Any, m_y: Any, *, rtol: float = 1e-5, atol: float = 1e-5, dump_name_when_error: str | None = None
) -> None:
    """AssertionError unless two arrays are equal within tolerances; `dump_name_when_error` begins names of files."""
    arrays = [numpy(each) for each in (m_x, m_y)]
    try:
        x, y = (array.astype("float64") if array.dtype == ml_dtypes.bfloat16 else array for array in arrays)
        np.testing.assert_allclose(x, y, rtol, atol)
    except AssertionError:
        if dump_name_when_error is not None:
            for array, end in zip(arrays, "xy", strict=True):
                array.tofile(f"{dump_name_when_error}_{end}.npy", sep=",")
        raise


def with_seed(seed: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a test: random numbers of torch, numpy and Python start from `seed`, or from one that is drawn."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> Any:
            chosen = random.randrange(2**31) if seed is None else seed
            states = np.random.get_state(), random.getstate()
            with torch.random.fork_rng(devices=[]):
                for start in (torch.manual_seed, np.random.seed, random.seed):
                    start(chosen)
                try:
                    return test(*args, **kwargs)
                except BaseException:
                    print(f"{test.__name__} failed; with_seed({chosen}) repeats it")
                    raise
                finally:
                    np.random.set_state(states[0])
                    random.setstate(states[1])

        return run

    return decorate
