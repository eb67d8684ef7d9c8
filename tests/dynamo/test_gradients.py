"""Gradients of small modules under `torch.compile(backend="autocast")` are torch's, operator by operator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from autocast import dynamo
from autocast.dynamo import graphs


class _Of(nn.Module):
    """A function of an input and a linear layer."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer, x)


class _Spectral(nn.Module):
    """Products of some frequencies with a complex weight, written into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 4, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = torch.fft.rfft2(x, norm="forward")
        out = torch.zeros(x.shape[0], 4, *c.shape[2:], dtype=torch.complex64)
        out[:, :, :4, :3] = torch.einsum("bixy,ioxy->boxy", c[:, :, :4, :3], self.weight)
        return torch.fft.irfft2(out, s=x.shape[2:], norm="forward")


class _Square(torch.autograd.Function):
    """Has a backward that is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * grad * x


def _without_gradients(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        factor = layer(x)
    return layer(x) * factor


def _in_place(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y[:, :2] = 0
    return y.tanh_()


def _attention(**options: Any) -> Callable[[], nn.Module]:
    def attend(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(layer(x), x, layer(x), **options)

    return lambda: _Of(attend)


class _Biased(nn.Module):
    """Attention with a bias that is learned, for all heads or keys, which some of the batch share."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x[:1], x.tanh(), self.bias, scale=0.3)


def _grouped(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    few = layer(x[:, ::2])
    attended = F.scaled_dot_product_attention(x, few, few, is_causal=True, enable_gqa=True)
    return attended.transpose(1, 2).reshape(*x.shape[:1], x.shape[2], -1)


#: The third query sees nothing.
_MASK = torch.ones(5, 5, dtype=torch.bool).tril().logical_and(torch.arange(5)[:, None] != 2)


def _images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2, bias=False),
        nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
        nn.Flatten(2),
        nn.Conv1d(4, 3, 3, stride=2, padding=1),
    )


def _at_random(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    image = (layer(x)[:, :, None] * x[:, None]).unsqueeze(1)
    return F.fractional_max_pool2d(image, 2, 3, _random_samples=torch.full((3, 1, 2), 0.4))


def _antialiased(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    image = (layer(x)[:, :, None] * x[:, None]).unsqueeze(1)
    return tuple(F.interpolate(image, (4, 3), mode=mode, antialias=True) for mode in ("bilinear", "bicubic"))


def _sampled_places(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of images of few channels."""
    image, grid = (layer(x)[:, :, None] * x[:, None]).unsqueeze(1), layer(x).reshape(3, 3, 1, 2).tanh()
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def _several_labels(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    labels = torch.tensor([[1, 2, -1, 0, 0, 3], [0, -1, 2, 2, 2, 2], [5, 4, 3, 2, 1, 0]])
    return F.multilabel_margin_loss(layer(x), labels)


_ROWS, _IMAGES = (3, 6), (2, 3, 9, 9)


def _bags(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of bags one is empty, one has padding alone, and rows are in several."""
    table, indices, offsets = layer(x), torch.tensor([2, 1, 1, 2, 0, 1, 1]), torch.tensor([0, 2, 2, 5])
    weights = x[0].sigmoid().repeat(2)[:7]
    return (
        F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights),
        F.embedding_bag(indices, table, offsets, mode="mean", padding_idx=1),
        F.embedding_bag(indices, table, offsets, mode="max", padding_idx=1),
        F.embedding_bag(indices[:6].reshape(2, 3), table, mode="max"),
    )


#: The modules, and the shapes of their inputs.
_MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (2, 4, 15, 16)),
    "layer_norm": (lambda: nn.Sequential(nn.LayerNorm((3, 6)), nn.LayerNorm(6, elementwise_affine=False)), (2, 3, 6)),
    "norms of channels": (lambda: _images(nn.GroupNorm(2, 4), nn.Tanh(), nn.BatchNorm2d(4, affine=False)), _IMAGES),
    "batch_norm, fixed": (lambda: _images(nn.BatchNorm2d(4)).eval(), _IMAGES),
    "pools": (lambda: _images(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1), nn.AdaptiveAvgPool2d(2)), _IMAGES),
    "pools of one image": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1)),
        (2, 9, 9),
    ),
    "pools of volumes": (
        lambda: nn.Sequential(nn.AvgPool3d(3, 2, 1, ceil_mode=True), nn.AdaptiveAvgPool3d(2), nn.Mish()),
        (2, 3, 6, 7, 5),
    ),
    "pools at random": (lambda: _Of(_at_random), _ROWS),
    "repeated borders": (lambda: _images(nn.ReplicationPad2d((2, -1, 0, 3))), _IMAGES),
    "antialiased": (lambda: _Of(_antialiased), _ROWS),
    "sampled": (lambda: _Of(_sampled_places), _ROWS),
    "distances": (lambda: _Of(lambda layer, x: (torch.cdist(layer(x), x, 3), F.pdist(layer(x), 1))), _ROWS),
    "labels of several classes": (lambda: _Of(_several_labels), _ROWS),
    "weight norms": (
        lambda: nn.Sequential(*(parametrizations.weight_norm(nn.Linear(6, 6), dim=dim) for dim in (0, 1))),
        _ROWS,
    ),
    "activations": (
        lambda: nn.Sequential(nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.LeakyReLU(), nn.ELU(), nn.ReLU()),
        _ROWS,
    ),
    "bags of embeddings": (lambda: _Of(_bags), _ROWS),
    "exponentials of matrices": (lambda: _Of(lambda layer, x: torch.matrix_exp(2 * layer(x)[:, :3])), (3, 6)),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.Linear(6, 6), nn.LogSoftmax(0)), _ROWS),
    "attention": (_attention(is_causal=True), (2, 2, 5, 6)),
    "attention, masked": (_attention(attn_mask=_MASK), (2, 2, 5, 6)),
    "attention, one head": (_attention(attn_mask=torch.arange(10.0).reshape(2, 5, 1) * _MASK), (2, 5, 6)),
    "attention, grouped": (lambda: _Of(_grouped), (2, 4, 5, 6)),
    "attention, biased": (lambda: _Biased(2, 5, 5), (3, 2, 5, 6)),
    "attention, biased queries": (lambda: _Biased(3, 1, 5, 1), (3, 2, 5, 6)),
    "detach": (lambda: _Of(lambda layer, x: layer(x) * layer(x).detach()), _ROWS),
    "no_grad": (lambda: _Of(_without_gradients), _ROWS),
    "a function with its own backward": (lambda: _Of(lambda layer, x: _Square.apply(layer(x))), _ROWS),
    "writes": (lambda: _Of(_in_place), _ROWS),
    "constants": (lambda: _Of(lambda layer, x: layer(x).gather(1, torch.tensor([[0], [1], [3]]))), _ROWS),
    "frequencies": (_Spectral, (2, 3, 8, 8)),
    "views": (lambda: _Of(lambda layer, x: (x, layer(x).t(), x.t())), _ROWS),
    "windows that overlap": (lambda: _Of(lambda layer, x: layer(x).unfold(1, 3, 2)), _ROWS),
}


def _results(module: nn.Module, called: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, then the gradients of the input and of the parameters, then buffers."""
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    outputs = called(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    sum((y * torch.randn(y.shape, generator=generator)).sum() for y in outputs).backward()
    gradients = [x.grad] if x.is_floating_point() else []
    return [*(y.detach() for y in outputs), *gradients, *(p.grad for p in module.parameters()), *module.buffers()]


def _check(module: nn.Module, x: torch.Tensor) -> None:
    plain = copy.deepcopy(module)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    for ours, theirs in zip(_results(module, compiled, x), _results(plain, plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.stride() == theirs.stride()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
@pytest.mark.parametrize("name", _MODULES)
def test_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    make, shape = _MODULES[name]
    _check(make(), torch.randn(shape))


def _solved(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    matrix = layer.weight @ layer.weight.mT + 4 * torch.eye(6)
    return layer(x) @ torch.linalg.solve(matrix, x.t()) @ x @ torch.linalg.cholesky(matrix)


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
def test_solutions_that_torch_checks_have_gradients() -> None:
    """A check that may raise is ordered by a token, which is no tensor when the graph runs."""
    torch.manual_seed(0)
    _check(_Of(_solved), torch.randn(3, 6))


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
def test_matrices_that_lie_column_by_column_have_gradients() -> None:
    """torch factors a matrix that lies row by row transposed, and its backward graph is for one or the other."""
    torch.manual_seed(0)
    module = _Of(lambda layer, x: layer(x) * torch.slogdet(layer.weight)[1] * torch.det(layer.weight.mT))
    module.layer.weight = nn.Parameter(torch.randn(6, 6).t())
    assert not module.layer.weight.is_contiguous()
    _check(module, torch.randn(3, 6))


def _weighed(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of one class alone, whose weight, which is drawn, cancels."""
    return F.nll_loss(layer(x).log_softmax(-1), torch.full((3,), 2), weight=torch.rand(6))


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
def test_what_reads_a_drawn_number_may_have_several_results() -> None:
    torch.manual_seed(0)
    _check(_Of(_weighed), torch.randn(3, 6))


def test_images_of_sizes_that_vary_are_sampled_with_gradients() -> None:
    def sampled(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, padding_mode="border", align_corners=True)

    compiled = torch.compile(sampled, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=True)
    with patch.object(graphs, "variant_of", wraps=graphs.variant_of) as compiles:
        for sizes in ((4, 9, 7, 6), (3, 9, 8, 2)):  # the first of which are equal to none of the grid's
            inputs = torch.randn(sizes).requires_grad_(), (torch.rand(sizes[0], 3, 5, 2) * 3 - 1.5).requires_grad_()
            ours, theirs = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (compiled, sampled))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert compiles.call_count == 2  # one forward, one backward


def test_rows_for_padding_learn_nothing() -> None:
    _check(nn.Embedding(10, 4, padding_idx=1), torch.tensor([[1, 2, 2], [9, 0, 1]]))


def test_sparse_gradients_are_sparse() -> None:
    """One that torch makes of what is computed, and a dense one that it adds such a one to: a head that is tied."""
    torch.manual_seed(0)
    parts = nn.ModuleDict({"apart": nn.Embedding(9, 4, sparse=True), "tied": nn.Embedding(9, 4, sparse=True)})
    ids = torch.tensor([[1, 2, 2], [8, 0, 1]])

    def loss() -> torch.Tensor:
        hidden = parts["apart"](ids) + parts["tied"](ids)
        return (hidden @ parts["tied"].weight.mT).square().sum()

    expected = torch.autograd.grad(loss(), list(parts.parameters()))
    compiled: Any = torch.compile(loss, backend=dynamo.backend, options={"policy": "mp0"})
    got = torch.autograd.grad(compiled(), list(parts.parameters()))
    assert [gradient.layout for gradient in got] == [torch.sparse_coo, torch.strided]
    torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
def test_averages_over_another_number_are_differentiated_whole() -> None:
    """Of the two operators that they are here, not of the last one alone."""
    _check(nn.AvgPool2d(3, 1, 1, divisor_override=2), torch.randn(1, 2, 5, 5))
