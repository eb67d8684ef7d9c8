"""Operators that nothing here computes are left to torch, whose results they are; `fallback="error"` refuses them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.errors import FallbackWarning, ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.frontend.converters.table import CONVERTERS
from tests.frontend.helpers import Calls, assert_close

Function = Callable[..., Any]


def imported(function: Function | nn.Module, *inputs: torch.Tensor, **options: Any) -> autocast.Model:
    """A model some of whose operators are left to torch."""
    module = function if isinstance(function, nn.Module) else Calls(function)
    with pytest.warns(FallbackWarning):
        return from_torch(module.eval(), inputs, **options)


X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: torch.special.airy_ai(x) + 1, "aten.special_airy_ai.default"),
        (lambda x: torch.linalg.qr(x)[0] * 2, "aten.linalg_qr.default"),
        (lambda x: torch.view_as_real(torch.fft.rfft(x, 600)), "aten._fft_r2c.default"),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, 600), "aten._fft_c2r.default"),
        (lambda x: torch.linalg.slogdet(x[:, :3] + torch.eye(3)), "aten._linalg_slogdet.default"),
        (lambda x: x.int() ** x.int().abs(), "aten.pow.Tensor_Tensor"),
        (lambda x: 3 ** x.int().abs(), "aten.pow.Scalar"),
    ],
)
def test_an_unknown_operator_is_torchs(function: Function, operator: str) -> None:
    model = imported(function, X)
    assert operator in model.fallbacks
    results, expected = model(X), function(X)
    assert_close(
        results if isinstance(results, tuple) else (results,), expected if isinstance(expected, tuple) else (expected,)
    )


def test_what_torch_fails_to_split_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's table for `diagonal_scatter`, the gradient of `diagonal`, writes in place."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.diagonal_scatter(x, x.sum(1)[:3]) + 1

    monkeypatch.delitem(CONVERTERS, "diagonal_scatter.default")
    model = imported(function, X)
    assert model.fallbacks == {"aten.diagonal_scatter.default": 1}
    assert_close((model(X),), (function(X),))


def test_sizes_of_the_inputs_reach_torch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x) * (torch.randint(x.shape[0], (x.shape[0], 1)) >= 0)

    model = imported(function, X, dynamic={"rows": (0, 0)})
    other = torch.randn(7, 4)
    assert_close((model(other),), (function(other),))


def test_the_warning_says_that_groups_of_a_convolution_vary() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(x[None], x[:, None, :2], groups=x.shape[0])

    with pytest.warns(FallbackWarning, match="whose number of groups is a size that varies"):
        model = from_torch(Calls(function), (X,), dynamic={"rows": (0, 0)})
    other = torch.randn(7, 4)
    assert_close((model(other),), (function(other),))


def test_the_warning_names_the_operator_its_count_and_its_place() -> None:
    module = nn.Sequential(nn.Identity(), Calls(lambda x: torch.special.airy_ai(x) + torch.special.airy_ai(x + 1)))
    with pytest.warns(FallbackWarning, match=r"aten\.special_airy_ai\.default: 2 calls in 1 \(Calls\) x2"):
        model = from_torch(module, (X,))
    assert model.fallbacks == {"aten.special_airy_ai.default": 2}


def test_fallback_error_refuses_what_torch_would_compute() -> None:
    with pytest.raises(ImportModelError, match=r"airy_ai\.default: 1 call in (?s:.*)without fallback='error' the rest"):
        from_torch(Calls(torch.special.airy_ai), (X,), fallback="error")


def test_another_fallback_is_refused() -> None:
    with pytest.raises(ImportModelError, match="fallback is 'numpy'; expected one of 'torch', 'error'"):
        from_torch(Calls(torch.special.airy_ai), (X,), fallback="numpy")


def test_autocast_leaves_it_in_float32_and_says_so() -> None:
    weight = torch.randn(4, 4)
    model = imported(lambda x: torch.special.airy_ai(x @ weight) @ weight, X)
    low = amp.autocast(model)
    assert low.report.fallbacks == {"aten.special_airy_ai.default": 1}
    decision = next(one for one in low.report.decisions if one.operator == "torch.aten.special_airy_ai.default")
    assert decision.why == "torch computes it, in the dtypes of the torch module"
    assert 'out_ty=R.Tensor((3, 4), dtype="float32")' in low.script()
    reference = torch.special.airy_ai((X @ weight).double()) @ weight.double()
    assert (low(X).double() - reference).abs().max() < 0.02 * reference.abs().max()


def test_it_is_a_kernel_of_its_own_in_a_profile() -> None:
    model = imported(lambda x: torch.special.airy_ai(x).exp(), X)
    report = autocast.profile_vm_model(model, "cpu", (X,), warmup=1, number=1, repeat=1)
    assert [row.calls for row in report.operators if row.name == "torch.aten.special_airy_ai.default"] == [1]


def test_gradients_are_torchs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            factor, triangle = torch.linalg.qr((x @ self.weight).cos().mT)
            return (
                torch.linalg.inv_ex((x @ self.weight)[:, :3] / 9 + torch.eye(3)).inverse * (factor @ triangle.sin())[:3]
            )

    module = Net()
    model = imported(module, X)
    step = autocast.training.training_step(model, autocast.training.MSE(), autocast.training.SGD())
    labels = torch.zeros(3, 3)
    torch.nn.functional.mse_loss(module(X), labels).backward()
    executable = vm.compile(step)
    executable(X, labels, torch.tensor(1.0))
    gradient = module.weight.detach() - torch.from_dlpack(executable.state["weight"])
    assert_close((gradient,), (module.weight.grad,))


def test_only_what_is_trained_is_differentiated_by_torch() -> None:
    """torch knows no derivative of this operator by its scales."""

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
            self.register_buffer("scale", torch.tensor([0.01, 0.02, 0.001]))
            self.register_buffer("zero", torch.zeros(3, dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.fake_quantize_per_channel_affine(self.weight, self.scale, self.zero, 0, -64, 63)
            return x @ weight.mT

    module, labels = Quantized(), torch.zeros(3, 3)
    step = autocast.training.training_step(imported(module, X), autocast.training.MSE(), autocast.training.SGD())
    torch.nn.functional.mse_loss(module(X), labels).backward()
    executable = vm.compile(step)
    executable(X, labels, torch.tensor(1.0))
    gradient = module.weight.detach() - torch.from_dlpack(executable.state["weight"])
    assert_close((gradient,), (module.weight.grad,))


def test_random_numbers_follow_the_seed_and_the_step() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.poisson(x.abs() * 9) + torch.poisson(x.abs() * 9)

    before = torch.random.get_rng_state()
    first, second = (vm.compile(imported(function, X, seed=3)) for _ in range(2))
    a, b = first(X), first(X)
    assert torch.equal(a, second(X))
    assert not torch.equal(a, b)
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_error_of_torchs_is_an_input_error_that_names_the_operator() -> None:
    model = imported(torch.poisson, torch.ones(3))
    with pytest.raises(InputError, match=r"main: torch's operator aten\.poisson\.default, which .* failed: inv"):
        model(-torch.ones(3))


def test_a_check_of_torchs_that_only_raises_is_left_out() -> None:
    matrix = torch.eye(3) * 4
    assert_close((imported(torch.linalg.cholesky, matrix)(matrix),), (torch.eye(3) * 2,))


def test_an_exported_file_says_that_it_needs_torch(tmp_path: Path) -> None:
    model = imported(lambda x: torch.special.airy_ai(x) * 2, X)
    path = tmp_path / "model.autocast"
    with pytest.warns(FallbackWarning, match=r"calls operators of torch \(aten\.special_airy_ai\.default\)"):
        vm.compile(model).export(path)
    assert_close((autocast.runtime.load(path)(X),), (torch.special.airy_ai(X) * 2,))


def test_loading_it_without_torch_is_an_error_that_says_so(tmp_path: Path) -> None:
    model = imported(lambda x: torch.special.airy_ai(x) * 2, X)
    path = tmp_path / "model.autocast"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        vm.compile(model).export(path)
    code = f"import sys; sys.modules['torch'] = None\nimport autocast.runtime\nautocast.runtime.load({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "calls torch's operator aten.special_airy_ai.default, and torch is not installed here" in done.stderr


def test_a_saved_model_calls_torch_when_it_is_read_again(tmp_path: Path) -> None:
    model = imported(lambda x: torch.special.airy_ai(x) * 2, X)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(autocast.load(tmp_path / "model")(X), torch.special.airy_ai(X) * 2)


def test_what_a_converter_refuses_is_split_by_torch_first() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.grid_sample(
            x[None, None], torch.linspace(-1, 1, 8).reshape(1, 2, 2, 2), align_corners=False
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        model = from_torch(Calls(function), (X,))
    assert "aten.grid_sampler_2d.default" not in model.fallbacks
    assert_close((model(X),), (function(X),))


def test_checks_that_only_raise_are_left_out_with_what_they_alone_read() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(torch.special.airy_ai(x) > 0)
        return x + 1

    x = torch.randn(2, 3)
    assert torch.equal(from_torch(Calls(checked), (x,), fallback="error")(x), x + 1)


@torch.library.custom_op("autocast_tests::add_into", mutates_args=("total",))
def _add_into(x: torch.Tensor, total: torch.Tensor, times: int) -> torch.Tensor:
    total.add_(x, alpha=times)
    return x.clone()


@_add_into.register_fake
def _(x: torch.Tensor, total: torch.Tensor, times: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("autocast_tests::negate", mutates_args=("x",))
def _negate(x: torch.Tensor) -> None:
    x.neg_()


class _Summed(nn.Module):
    """Operators of a user's write into a tensor, a part of one, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x * 2
        kept = rows + 1
        torch.ops.autocast_tests.negate(rows[:2])
        return torch.ops.autocast_tests.add_into(rows, self.total, 3), self.total * kept, rows


def test_operators_that_write_into_their_arguments_are_torchs() -> None:
    module = _Summed()
    model = imported(_Summed(), X)
    assert model.fallbacks == {"autocast_tests.negate.default": 1, "autocast_tests.add_into.default": 1}
    executable, called = vm.compile(model), autocast.to_torch(model)
    for run in range(2):
        expected = module(X)
        assert_close(executable(X), expected)
        if run == 0:
            assert_close(called(X), expected)
    assert_close((torch.from_dlpack(executable.state["total"]),), (module.total,))


@torch.library.custom_op("autocast_tests::relu", mutates_args=())
def relu(x: torch.Tensor) -> torch.Tensor:
    """Of the name of one of torch's, and something else."""
    return 3 * x


@relu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_another_library_with_a_name_of_torchs_is_not_torchs() -> None:
    x = torch.randn(2, 3)
    with pytest.warns(FallbackWarning, match="autocast_tests"):
        model = from_torch(Calls(torch.ops.autocast_tests.relu), (x,))
    assert torch.equal(vm.compile(model)(x), 3 * x)
