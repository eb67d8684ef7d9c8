"""Parameters: once each, under torch's names, sharing torch's memory, in torch's dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autocast import vm
from autocast.frontend import from_torch
from autocast.training import MSE, SGD, Trainer
from tests.architectures import ARCHITECTURES
from tests.frontend.helpers import assert_close, runner


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_tied_weight_is_one_parameter(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    model = from_torch(architecture.module, architecture.args, example_kwargs=architecture.kwargs)
    sizes = [tuple(value.shape) for value in model.params.values()]
    embedding = architecture.module.get_input_embeddings().weight
    assert sizes.count(tuple(embedding.shape)) == 1
    assert set(model.params) <= {key for key, _ in architecture.module.named_parameters()}


def test_parameters_keep_their_names_order_and_memory() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)).requires_grad_(False)
    model = from_torch(module, (torch.randn(5, 4),))
    assert list(model.params) == ["0.weight", "0.bias", "2.weight"]
    assert [var.name for var in model.main.params] == ["input", "p_0_weight", "p_0_bias", "p_2_weight"]
    x = torch.randn(5, 4)
    run = runner(model)
    module[0].weight.mul_(3.0)
    assert_close(run(x), (module(x),))


def test_statistics_of_batch_norm_are_parameters() -> None:
    module = nn.BatchNorm1d(4).eval()
    model = from_torch(module, (torch.randn(2, 4),))
    assert list(model.params) == ["weight", "bias", "running_mean", "running_var"]


def test_complex_buffers_are_constants() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factors", torch.polar(torch.ones(4), torch.arange(4.0)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(x * self.factors)

    module, x = Turns(), torch.randn(3, 4)
    model = from_torch(module, (x,))
    assert not model.params
    assert_close(runner(model)(x), [module(x)])


def test_parameters_that_the_model_does_not_use_are_left_out() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    assert list(from_torch(Half(), (torch.randn(2, 3),)).params) == ["used.weight", "used.bias"]


@pytest.mark.parametrize(
    ("name", "dtype"), [("bert", torch.bfloat16), ("llama", torch.float16), ("unet", torch.bfloat16)]
)
def test_a_low_precision_model_keeps_its_dtypes(name: str, dtype: torch.dtype) -> None:
    architecture = ARCHITECTURES[name]()
    args = tuple(x.to(dtype) if x.is_floating_point() else x for x in architecture.args)
    model = from_torch(architecture.module.to(dtype), args)
    text = str(dtype).removeprefix("torch.")
    assert {str(value.dtype) for value in model.params.values()} == {text}
    assert str(model.main.ret_ty.dtype) == text
    assert 'out_dtype="float32"' not in model.script()
    products = [line for line in model.script().splitlines() if "R.matmul" in line or "R.nn.conv2d" in line]
    assert products and all(f'dtype="{text}"' in line for line in products)


def test_a_float16_product_model_computes_what_torch_computes() -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).half().requires_grad_(False)
    x = torch.randn(5, 16).half()
    assert_close(runner(from_torch(module, (x,)))(x), (module(x),), tolerance=float(np.finfo(np.float16).eps) * 4)


def test_a_cache_is_not_built_and_the_configuration_is_restored() -> None:
    architecture = ARCHITECTURES["gpt2"]()
    architecture.module.config.use_cache = True
    model = from_torch(architecture.module, architecture.args)
    assert model.output_names == ("logits",)
    assert architecture.module.config.use_cache is True


def test_a_weight_that_is_not_aligned_is_copied() -> None:
    module = nn.Linear(4, 3, bias=False)
    module.weight = nn.Parameter(torch.randn(13)[1:].view(3, 4), requires_grad=False)
    x = torch.randn(2, 4)
    assert_close(runner(from_torch(module, (x,)))(x), (module(x),))


def test_a_module_made_in_inference_mode_is_imported() -> None:
    with torch.inference_mode():
        module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU()).eval()
        x = torch.randn(3, 6)
        expected = module(x)
    np.testing.assert_allclose(vm.compile(from_torch(module, (torch.zeros(3, 6),)))(x.numpy()), expected, atol=1e-6)


class _Spectrum(nn.Module):
    """Has complex parameters, as state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.factors = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64, generator=generator))
        self.shift = nn.Parameter(torch.tensor(0.5 + 0.25j))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x.to(torch.complex64) @ self.factors).exp() * self.shift).real


def test_complex_parameters_are_pairs_of_real_numbers() -> None:
    module, x = _Spectrum(), torch.randn(2, 4)
    model = from_torch(module.eval(), (x,))
    assert {name: tuple(value.shape) for name, value in model.params.items()} == {"factors": (4, 3, 2), "shift": (2,)}
    assert_close(runner(model)(x), (module(x).detach(),))


def test_complex_parameters_are_trained_as_torch_trains_them() -> None:
    module, x, labels = _Spectrum(), torch.randn(2, 4), torch.randn(2, 3)
    trainer = Trainer(from_torch(module, (x,)), MSE(), SGD(), learning_rate=0.1)
    trainer.step((x, labels))
    nn.functional.mse_loss(module(x), labels).backward()
    trained = _Spectrum()
    trainer.to_torch(trained)
    for (name, parameter), got in zip(module.named_parameters(), trained.parameters(), strict=True):
        expected = parameter.detach() - 0.1 * parameter.grad
        torch.testing.assert_close(got.detach(), expected, msg=lambda text, name=name: f"{name}: {text}")
