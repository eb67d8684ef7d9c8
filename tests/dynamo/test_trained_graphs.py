"""Graphs that `torch.compile(backend="autocast")` trains: what is dropped and kept, dtypes, sizes and numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

from autocast import dynamo


@pytest.mark.parametrize("masked", [False, True])
def test_attention_drops_probabilities_alike_forward_and_backward(masked: bool) -> None:
    """Values that are the identity show which probabilities were dropped."""
    torch.manual_seed(0)
    mask = torch.ones(5, 5, dtype=torch.bool).tril() & (torch.arange(5)[:, None] != 2) if masked else None
    q, k = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(2))
    v = torch.eye(5).repeat(2, 3, 1, 1).requires_grad_()
    options = {"policy": "mp0"}
    compiled = torch.compile(F.scaled_dot_product_attention, backend=dynamo.backend, options=options)
    y = compiled(q, k, v, mask, dropout_p=0.3, is_causal=not masked)
    kept = (y != 0).detach()
    hidden = (torch.ones(5, 5, dtype=torch.bool).tril() if mask is None else mask).logical_not()
    scores = (q @ k.mT / 2).masked_fill(hidden, float("-inf"))
    p = scores.softmax(-1).nan_to_num().masked_fill(hidden, 0)
    expected = (p * kept / 0.7) @ v
    torch.testing.assert_close(y, expected)
    weight = torch.randn(y.shape)
    for ours, theirs in zip(
        torch.autograd.grad(y, (q, k, v), weight), torch.autograd.grad(expected, (q, k, v), weight), strict=True
    ):
        torch.testing.assert_close(ours, theirs.nan_to_num())


@pytest.mark.parametrize(("rate", "of_scores"), [(0.0, []), (0.1, [torch.bool])])
def test_attention_keeps_no_probabilities(rate: float, of_scores: list[torch.dtype]) -> None:
    q, k, v = (torch.randn(1, 2, 32, 4, requires_grad=True) for _ in range(3))
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        compiled = torch.compile(F.scaled_dot_product_attention, backend=dynamo.backend)
        compiled(q, k, v, dropout_p=rate).sum().backward()
    assert [t.dtype for t in kept if t.shape[-2:] == (32, 32)] == of_scores


class _Cloned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh().clone()


def test_who_changes_a_copied_result_changes_no_gradient() -> None:
    torch.manual_seed(0)
    module = _Cloned()
    gradients = []
    for run in (module, torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})):
        module.zero_grad()
        result = run(torch.ones(2, 4))
        result += 5
        result.sum().backward()
        gradients.append(module.linear.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0])
    torch._dynamo.reset()


def test_images_of_other_sizes_train_in_low_precision() -> None:
    """The backward graph is compiled anew for plain numbers, of inputs that the forward graph keeps low."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    compiled = torch.compile(module, backend=dynamo.backend)
    for shape in ((4, 3, 8, 8), (5, 3, 9, 10), (3, 3, 7, 7)):
        x, gradients = torch.randn(shape), []
        for run in (module, compiled):
            module.zero_grad()
            run(x).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        for got, expected in zip(*gradients[::-1], strict=True):
            torch.testing.assert_close(got, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))
    torch._dynamo.reset()


@pytest.mark.parametrize("options", [{"out_dtype": "bfloat16"}, {"policy": "mp0,out_dtype=float32"}])
def test_the_dtype_of_results_is_torchs_where_gradients_are_wanted(options: dict[str, str]) -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend=dynamo.backend, options=options)
    with pytest.raises(BackendCompilerFailed, match=r"got out_dtype='\w+' for a graph of which gradients are wanted"):
        compiled(torch.randn(2, 4))
    torch._dynamo.reset()


@pytest.mark.parametrize("trains", [True, False])
def test_sizes_that_vary_for_torch_may_be_some_alone(trains: bool) -> None:
    """What a linear layer reads of images has as many columns as its weight: torch's sizes vary with that held."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=True)
    for shape in ((4, 3, 8, 8), (6, 3, 8, 8), (6, 3, 5, 14)):
        x, found = torch.randn(shape), []
        for run in (module, compiled):
            module.zero_grad()
            with torch.set_grad_enabled(trains):
                result = run(x)
            if trains:
                result.square().sum().backward()
            found.append([result, *(parameter.grad.clone() for parameter in module.parameters() if trains)])
        for got, expected in zip(*found[::-1], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


class _Fourier(nn.Module):
    """A layer of a Fourier neural operator; the modes that it keeps are written into zeros."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 5, dtype=torch.cfloat) / 8)
        self.beside, self.breaks = nn.Conv1d(8, 8, 1), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.beside(x)
        modes = torch.einsum("bim,iom->bom", torch.fft.rfft(x, norm="forward")[..., :5], self.weight)
        if self.breaks:
            torch._dynamo.graph_break()
            modes[..., 4:] *= 2
        kept = torch.zeros(x.shape[0], 8, x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        kept[..., :5] = modes
        return torch.fft.irfft(kept, n=x.shape[-1], norm="forward") + x


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf", "ignore::autocast.errors.FallbackWarning"
)
@pytest.mark.parametrize(
    ("policy", "tolerance", "breaks"),
    [("mp0", 1e-5, True), ("mp1", 0.02, False), ("mp1", 0.02, True)],
    ids=["mp0-in two graphs", "mp1-whole", "mp1-in two graphs"],
)
def test_complex_numbers_that_the_backward_reads_are_not_rounded(policy: str, tolerance: float, breaks: bool) -> None:
    torch.manual_seed(0)
    module, x = _Fourier(breaks), torch.randn(2, 8, 24)
    gradients = []
    for run in (module, torch.compile(module, backend=dynamo.backend, options={"policy": policy})):
        module.zero_grad()
        run(x).square().sum().backward()
        gradients.append(module.weight.grad.clone())
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < tolerance
    torch._dynamo.reset()


@pytest.mark.parametrize("trains", [False, True])
def test_a_number_that_varies_may_become_a_tensor(trains: bool) -> None:
    compiled = torch.compile(lambda x, n: torch.as_tensor(2 * n + 1.0) * x, backend=dynamo.backend)
    for number in (0.5, 1.5, 2.25):
        x = torch.randn(2, 4, requires_grad=trains)
        torch.testing.assert_close(compiled(x, number), (2 * number + 1) * x)
    torch._dynamo.reset()
