"""Integers wrap around as torch's do, whatever the kernel does with them afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autocast.frontend import from_torch
from tests.frontend.helpers import Calls

INT32 = torch.tensor([[2**31 - 1, 5, -(2**31), 7], [2**30, -1, 0, 123456789]], dtype=torch.int32)
INT64 = torch.tensor([[2**63 - 1, 5, -(2**63), 7], [2**62, -1, 0, 2**61 + 1]])

#: What is computed of what may be too large, in one kernel: TVM and LLVM take it for granted that nothing is.
READ: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x + 1 > x": lambda x: x + 1 > x,
    "x * 2 // 2": lambda x: x * 2 // 2,
    "x + x < 0": lambda x: x + x < 0,
    "abs(x) < 0": lambda x: x.abs() < 0,
    "-x < 0": lambda x: -x < 0,
    "max(x + 1, x)": lambda x: torch.maximum(x + 1, x),
    "x - 7 > x": lambda x: x - 7 > x,
    "sum of x * x": lambda x: (x * x).sum(1),
    "sum of -x": lambda x: (-x).sum(1),
    "sum of abs(x)": lambda x: x.abs().sum(0),
    "running sum of x + x": lambda x: (x + x).cumsum(1),
    "long(x * 123456)": lambda x: (x * 123456).long(),
    "float(x + x)": lambda x: (x + x).double(),
    "a hash": lambda x: ((x * 1103515245 + 12345) >> 5) % 97,
    "x - row": lambda x: (x - x[:1]) // 3,
    "row - column": lambda x: (x[0] - x[:, :1]).long() * 2,
    "zeros less x": lambda x: x * 0 + x * 0 - x[0, 1],
}


@pytest.mark.parametrize("x", [INT32, INT64], ids=["int32", "int64"])
def test_they_are_those_of_torch(x: torch.Tensor) -> None:
    module = Calls(lambda x: tuple(function(x) for function in READ.values()))
    got = from_torch(module, (x,), fallback="error")(x)
    for name, one, expected in zip(READ, got, module(x), strict=True):
        assert torch.equal(one, expected), name


def test_so_they_are_of_any_size() -> None:
    module = Calls(lambda x, y: ((x + y * 3) * x[:, :1] - y > x, (x.abs() - y).amax(1)))
    given = INT64, INT64.flip(0)
    model = from_torch(module, given, dynamic={"n": [(0, 0, 1, 9), (1, 0)], "m": [(0, 1, 1, 9), (1, 1)]})
    for rows, columns in ((2, 4), (1, 1), (2, 1)):
        part = [x[:rows, :columns].contiguous() for x in given]
        for got, expected in zip(model(*part), module(*part), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_powers_are_those_of_torch(dtype: torch.dtype) -> None:
    exponents, numbers = torch.arange(-3, 70).to(dtype), torch.arange(-128, 127).to(dtype)
    powers = [lambda e, base=base: base**e for base in (0, 2, -6)]
    products = [lambda x, n=n: x**n for n in (0, 3, 10, 77)]
    module = Calls(lambda e, x: (*(power(e) for power in powers), *(product(x) for product in products)))
    for given in ((exponents, numbers), (exponents[:1], numbers[:0])):
        got = from_torch(module, given, fallback="error")(*given)
        for one, expected in zip(got, module(*given), strict=True):
            assert one.dtype == expected.dtype
            assert torch.equal(one, expected)


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
def test_sums_of_windows_are_divided_by_what_is_given() -> None:
    module, x = Calls(lambda x: torch.nn.functional.avg_pool2d(x, 2, divisor_override=3)), torch.arange(-8, 8)
    assert torch.equal(from_torch(module, (x.reshape(1, 4, 4),))(x.reshape(1, 4, 4)), module(x.reshape(1, 4, 4)))


def test_images_of_bytes_are_resized_as_by_torch() -> None:
    """Rounded after each axis, where a cubic goes beyond 255, too; halves may be on either side of themselves."""
    images = torch.randint(0, 256, (2, 3, 9, 7), dtype=torch.uint8)
    module = Calls(
        lambda x: tuple(
            nn.functional.interpolate(x, **options)
            for options in (
                {"size": (13, 15), "mode": "bicubic"},
                {"size": (5, 7), "mode": "bilinear", "align_corners": True},
                {"scale_factor": 2, "mode": "bilinear"},
            )
        )
    )
    model = from_torch(module, (images,), dynamic={"h": [(0, 2)], "w": [(0, 3)]}, fallback="error")
    for given in (images, images[:, :, :4, :5].contiguous()):
        for got, expected in zip(model(given), module(given), strict=True):
            assert got.dtype is expected.dtype
            assert (got.int() - expected.int()).abs().max() <= 1
            assert (got != expected).float().mean() < 0.1
