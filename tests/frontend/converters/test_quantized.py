"""What torch's quantizers write: every step is the one that torch takes, by operators of the IR."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn

from autocast import amp, vm
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, relative_error

ops = torch.ops.quantized_decomposed

#: The least and the largest integer, and the dtype.
BOUNDS = {
    "int8": (-128, 127, torch.int8),
    "symmetric": (-127, 127, torch.int8),
    "4 bits": (-8, 7, torch.int8),
    "uint8": (0, 255, torch.uint8),
    "7 bits": (0, 127, torch.uint8),
    "int16": (-32768, 32767, torch.int16),
}


def numbers() -> torch.Tensor:
    """Of all sizes, also beyond the last integer, and many that lie half way between two of them."""
    x = torch.randn(4, 3, 50) * 2
    x[0, 0] = (torch.arange(50) + 0.5) * 0.05
    x[1, 0, :2] = torch.tensor([1e9, -torch.inf])
    return x


@pytest.mark.parametrize("case", BOUNDS)
def test_one_scale_gives_the_integers_of_torch(case: str) -> None:
    low, high, dtype = BOUNDS[case]

    def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = ops.quantize_per_tensor(x, 0.05, 3, low, high, dtype)
        return q, ops.dequantize_per_tensor(q, 0.05, 3, low, high, dtype)

    x = numbers()
    model = from_torch(Calls(pair), (x,), fallback="error")
    for got, expected in zip(vm.compile(model)(x), pair(x), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_each_channel_has_its_scale(axis: int) -> None:
    size = (4, 3)[axis]

    def pair(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = ops.quantize_per_channel(x, scale, zero, axis, -128, 127, torch.int8)
        return q, ops.dequantize_per_channel(q, scale, zero, axis, -128, 127, torch.int8)

    inputs = numbers(), torch.rand(size) + 0.01, torch.arange(size) - 1
    executable = vm.compile(from_torch(Calls(pair), inputs, fallback="error"))
    for got, expected in zip(executable(*inputs), pair(*inputs), strict=True):
        assert torch.equal(got, expected)


def test_scales_may_be_tensors_and_zeros_none() -> None:
    def pair(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = ops.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        signed = ops.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
        return (
            ops.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8),
            ops.dequantize_per_channel(signed, torch.full((3,), 0.5), None, 1, -128, 127, torch.int8),
        )

    inputs = numbers(), torch.tensor(0.05), torch.tensor(7)
    executable = vm.compile(from_torch(Calls(pair), inputs, fallback="error"))
    for got, expected in zip(executable(*inputs), pair(*inputs), strict=True):
        assert torch.equal(got, expected)


def test_products_of_integers_are_exact() -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((17, 1000), (1000, 24)))
    a[0], b[:, 0] = -128, -128
    executable = vm.compile(from_torch(Calls(torch._int_mm), (a, b), fallback="error"))
    assert torch.equal(executable(a, b), (a.long() @ b.long()).int())


class Quantized(nn.Module):
    """A convolution as a quantizer leaves it: activations and weights of 8 bits, with a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (8, 3, 3, 3), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = ops.dequantize_per_tensor(
            ops.quantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8), 0.03, 120, 0, 255, torch.uint8
        )
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        y = torch.relu(nn.functional.conv2d(x, weight))
        return ops.dequantize_per_tensor(
            ops.quantize_per_tensor(y, 0.02, 0, 0, 255, torch.uint8), 0.02, 0, 0, 255, torch.uint8
        )


def test_a_quantized_convolution_is_right_in_float32_and_near_in_mixed_precision() -> None:
    torch.manual_seed(0)
    module, x = Quantized(), torch.randn(2, 3, 12, 12)
    model = from_torch(module, (x,), fallback="error")
    expected = module(x)
    assert (vm.compile(model)(x) - expected).abs().max() <= 0.0201  # a sum near the middle of two steps
    assert relative_error(vm.compile(model)(x), expected) < 1e-3
    assert relative_error(vm.compile(amp.autocast(model))(x), expected) < 1e-2
