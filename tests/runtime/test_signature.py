"""Inputs of all kinds with a size of 0, known when a model is compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from autocast import vm
from autocast.errors import InputError
from autocast.frontend import from_torch
from tests.kernels.modules import module

op = relax.op

KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "torch": torch.from_numpy,
    "numpy": np.asarray,
    "tvm": tvm.runtime.tensor,
    "tvm, of torch": lambda array: tvm.runtime.from_dlpack(torch.from_numpy(array).clone()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["n", 0])
def test_inputs_without_elements_are_taken_and_results_returned(kind: str, size: object) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.Tuple([op.matmul(x, w), op.sum(x, 0), x])

    executable = vm.compile(module(body, ((size, 3), "float32"), ((3, 2), "float32")))
    results = executable(*[KINDS[kind](np.ones(shape, "float32")) for shape in ((0, 3), (3, 2))])
    assert [tuple(result.shape) for result in results] == [(0, 2), (3,), (0, 3)]
    assert np.asarray(results[1].numpy() if kind.startswith("tvm") else results[1]).tolist() == [0, 0, 0]


#: What is computed of (n, 4, 6), whatever n is.
OF_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elementwise": lambda x: torch.nn.functional.gelu(x) + x,
    "sum over n": lambda x: x.sum(0),
    "mean over n": lambda x: x.mean(0),
    "rows": lambda x: torch.nn.functional.layer_norm(x, (6,)),
    "softmax over n": lambda x: x.softmax(0),
    "product": lambda x: x @ x.transpose(1, 2),
    "product over n": lambda x: x.flatten(1).T @ x.flatten(1),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
    "attention to n keys": lambda x: nn.functional.scaled_dot_product_attention(
        torch.ones(4, 5, 6), x.transpose(0, 1), x.transpose(0, 1)
    ),
    "convolution": lambda x: nn.functional.conv1d(x, torch.ones(3, 4, 3), padding=1).mean(2),
    "joins": lambda x: torch.cat([x, torch.ones(2, 4, 6), x.flip(1)]),
    "transposition": lambda x: x.permute(2, 0, 1).contiguous(),
    "running sum": lambda x: x.cumsum(0),
    "order": lambda x: x.argsort(0),
}


def test_a_size_that_varies_may_be_0() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(function(x) for function in OF_SIZES.values())

    module = Several()
    executable = vm.compile(from_torch(module, (torch.randn(3, 4, 6),), dynamic={"n": ("x", 0, 0, 9)}))
    for size in (0, 1, 5):
        x = torch.randn(size, 4, 6)
        for name, got, expected in zip(OF_SIZES, executable(x), module(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m, n=name: n + m)


def test_choosing_from_a_size_that_is_0_is_an_error() -> None:
    executable = vm.compile(module(lambda x: op.max(x, 1), ((3, "n"), "float32")))
    assert executable(np.ones((3, 2), "float32")).tolist() == [1, 1, 1]
    with pytest.raises(InputError, match=r"x0 has size 0 along axis 1, expected n of 1 at least: relax.max over it"):
        executable(np.ones((3, 0), "float32"))


def test_parameters_may_have_no_elements() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.functional.linear(x, self.weight), x + self.weight[:2]

    x = torch.ones(2, 0)
    got = vm.compile(from_torch(Product(), (x,)))(x)
    assert [value.tolist() for value in got] == [[[0, 0, 0], [0, 0, 0]], [[], []]]


def test_inputs_may_be_given_by_their_names():
    model, x = from_torch(nn.Linear(4, 3).eval(), (torch.zeros(2, 4),)), torch.randn(2, 4)
    assert torch.equal(vm.run_vm_model(model, "cpu", {"input": x}), vm.run_vm_model(model, "cpu", [x]))
    assert vm.get_peak_memory(model, "cpu", {"input": x}) == vm.get_peak_memory(model, "cpu", [x])
    assert vm.calc_model_gflops(model, "cpu", {"input": x}) == 48e-9
    assert len(vm.profile_vm_model(model, "cpu", {"input": x}, warmup=0, number=1, repeat=2)) == 2


def test_an_input_of_a_name_that_there_is_not_is_an_error():
    model = from_torch(nn.Linear(4, 3).eval(), (torch.zeros(2, 4),))
    with pytest.raises(InputError, match=r"names \['wrong'\], expected .* is missing; wrong is none of them"):
        vm.run_vm_model(model, "cpu", {"wrong": torch.zeros(2, 4)})


@pytest.mark.parametrize(
    "number", [np.float32(0.5), np.float64(0.5), np.int64(3), np.bool_(True)], ids=lambda x: x.dtype
)
def test_a_number_of_numpy_is_an_array_without_axes(number: np.generic) -> None:
    scaled = nn.Module()
    scaled.forward = lambda x, scale: (x * scale, scale)  # type: ignore[method-assign]
    x = np.arange(3, dtype="float32")
    model = from_torch(scaled, (torch.from_numpy(x), torch.from_numpy(np.asarray(number))))
    for run in (model, vm.compile(model)):
        product, same = run(x, number)
        np.testing.assert_array_equal(product, x * number)
        assert same.dtype == number.dtype and same == number
    with pytest.raises(InputError, match=r"input scale is .*, expected .*\[\]. Convert it"):
        vm.compile(model)(x, np.int8(1))


def test_a_number_of_numpy_is_nothing_to_write_into() -> None:
    count = nn.Module()
    count.forward = lambda x, calls: x + calls.add_(1.0)  # type: ignore[method-assign]
    x = torch.ones(3)
    with pytest.raises(InputError, match="which is a float32 that cannot be written"):
        vm.compile(from_torch(count, (x, torch.tensor(0.0))))(x, np.float32(0))
