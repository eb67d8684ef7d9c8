"""Functions that torch.export refuses are imported: results and gradients are torch's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import tvm
from torch import nn
from torch.backends import opt_einsum
from torch.nn import functional as F

from autocast import from_torch, vm
from autocast.errors import ImportModelError
from autocast.training import differentiate
from tests.frontend.helpers import Calls

pytestmark = pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")

LENGTHS = (torch.tensor([12, 10, 12]), torch.tensor([5, 4, 2]))
LABELS = torch.randint(1, 7, (3, 5), generator=torch.Generator().manual_seed(0))


def _ctc(**options: object) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.ctc_loss(x.log_softmax(2), LABELS, *LENGTHS, **options)


SEGMENTS = torch.randint(0, 3, (12, 7), generator=torch.Generator().manual_seed(0))


def _segments(reduction: str, **options: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The extremes of rounded numbers, among which are equal ones."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        steps = x[:, 0] + ((x[:, 0] * 4).round() / 4 - x[:, 0]).detach()
        return x[:3, 1].scatter_reduce(0, SEGMENTS, steps, reduction, **options).square().mean()

    return loss


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ctc_loss": _ctc(),
    "ctc_loss of each": lambda x: _ctc(reduction="none", zero_infinity=True)(x).square().mean(),
    "ctc_loss of plain lengths": lambda x: F.ctc_loss(x.log_softmax(2), LABELS, (12, 10, 12), (5, 4, 2)),
    "CTCLoss": lambda x: nn.CTCLoss(blank=6, reduction="sum")(x.log_softmax(2), LABELS.clamp(max=5), *LENGTHS),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x[0], x[1], x[2].exp()),
    "gaussian_nll_loss of one variance": lambda x: F.gaussian_nll_loss(x[0], x[1], 0.5, full=True, reduction="sum"),
    "gaussian_nll_loss of variances of rows": lambda x: F.gaussian_nll_loss(x[0], x[1], x[2, :, 0].square()),
    "GaussianNLLLoss": lambda x: nn.GaussianNLLLoss(reduction="none", eps=0.5)(x[0], x[1], x[2].abs()).mean(),
    "largest of segments": _segments("amax", include_self=False),
    "smallest of segments": _segments("amin"),
    "cov": lambda x: x[0].cov().square().mean(),
    "corrcoef": lambda x: torch.corrcoef(x[0]).square().mean(),
    "lstsq": lambda x: torch.linalg.lstsq(x[:, 0], x[:, 1:].reshape(12, 14)).solution.square().mean(),
}


class _Layer(nn.Module):
    def __init__(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(7, 7), loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layer(x))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    module, x = _Layer(LOSSES[name]), torch.randn(12, 3, 7)
    model = from_torch(module, (x,))
    function = model.mod["main"]
    gradients = differentiate(function, [var for var in function.params if var.name.startswith("layer")])
    got = vm.compile(model.replace(mod=tvm.IRModule({"main": gradients})))(x)
    loss = module(x)
    loss.backward()
    for one, other in zip(got, (loss, *(parameter.grad for parameter in module.parameters())), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, rtol=1e-4, atol=1e-5)


RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cov with weights": lambda x: torch.cov(x, fweights=torch.arange(1, 7), aweights=x[0].abs()),
    "cov of a vector": lambda x: x[0].cov(correction=0),
    "cov without freedom": lambda x: torch.cov(x[:, :2], correction=2),
    "where bytes are not 0": lambda x: torch.where(mask := (2 * (x > 0)).byte(), x.where(mask, -x).sqrt(), 1.0),
    "resize_as_": lambda x: torch.exp(x).resize_as_(x[:2, :3]),
    "resize_as_ of what is read later": lambda x: (y := x.clone(), y.resize_as_(x[:2]), y.sum(0))[-1],
    "combinations": lambda x: torch.combinations(x[0], 3, with_replacement=True),
    "combinations of more than there are": lambda x: torch.combinations(x[0], 7),
    "combinations of none": lambda x: torch.combinations(x[0], 0),
}


@pytest.mark.filterwarnings("ignore:cov", "ignore:where received a uint8")
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_torch(name: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    got = vm.compile(from_torch(Calls(RESULTS[name]), (x,), fallback="error"))(x)
    torch.testing.assert_close(got, RESULTS[name](x), equal_nan=True)


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_channels_are_normalized_across_maps_as_torch_does(size: int) -> None:
    torch.manual_seed(0)
    module, x = nn.CrossMapLRN2d(size, alpha=0.1, beta=0.6, k=0.7), torch.randn(2, 7, 4, 3)
    torch.testing.assert_close(vm.compile(from_torch(module, (x,), fallback="error"))(x), module(x))


SYSTEMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "more equations": lambda x: torch.linalg.lstsq(x.t(), x.exp().t()).solution,
    "fewer equations": lambda x: torch.linalg.lstsq(x, x.exp(), driver="gels")[0],
    "a lower rank": lambda x: torch.linalg.lstsq(x.t() @ x, x[0]).solution,
    "many vectors": lambda x: torch.linalg.lstsq(torch.stack([x.t(), x.exp().t()]), torch.stack([x[0], x[1]]))[0],
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_least_squares_are_solved_whatever_the_rank(name: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    got = vm.compile(from_torch(Calls(SYSTEMS[name]), (x,)))(x)
    torch.testing.assert_close(got, SYSTEMS[name](x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("read", [lambda found: found.residuals, lambda found: found[:2], lambda found: found])
def test_what_a_rank_gives_its_size_is_refused(read: Callable[..., object]) -> None:
    with pytest.raises(ImportModelError, match=r"reads residuals of torch\.linalg\.lstsq.*expected its solution alone"):
        from_torch(Calls(lambda x: read(torch.linalg.lstsq(x, x))), (torch.randn(4, 3),))


def test_the_order_of_products_is_asked_for_with_an_examples_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`opt_einsum`, where it is installed, makes numbers of the sizes of its tensors."""
    asked: list[tuple[Any, ...]] = []

    def contract_path(equation: str, *given: Any, shapes: bool = False, optimize: Any = None) -> Any:
        sizes = [tuple(map(int, one if shapes else one.shape)) for one in given]
        asked.append((equation, *sizes))
        return [(0, 2), (0, 1)], ""

    monkeypatch.setattr(opt_einsum, "is_available", lambda: True)
    monkeypatch.setattr(opt_einsum, "get_opt_einsum", lambda: SimpleNamespace(contract_path=contract_path))
    for name, value in {"enabled": True, "strategy": "auto"}.items():
        monkeypatch.setitem(opt_einsum.set_flags.__globals__, name, value)

    def tensors(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 5, 4), torch.randn(batch, 3), torch.randn(batch, 5, 3)

    module = Calls(lambda q, c, k: torch.einsum("bnd,be,bne->bnd", q, c, k))
    model = from_torch(module, tensors(2), dynamic={"batch": ("*", 0, 1, 16)})
    assert asked[-1] == ("bnd,be,bne->bnd", (2, 5, 4), (2, 3), (2, 5, 3))
    for batch in (1, 3):
        given = tensors(batch)
        torch.testing.assert_close(model(*given), module(*given))


class Moved(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(4, 4), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.to(x.device, self.dtype)(x.to(self.dtype))


def test_a_layer_may_be_moved_to_where_it_is() -> None:
    module, x = Moved(torch.float32).eval(), torch.randn(2, 4)
    expected = module(x)
    torch.testing.assert_close(from_torch(module, (x,))(x), expected)
    with torch.no_grad():
        compiled = torch.compile(module, backend="autocast", options={"policy": "mp0"})
        torch.testing.assert_close(compiled(x), expected)
    with pytest.raises(ImportModelError, match="cannot export Moved"):
        from_torch(Moved(torch.bfloat16).eval(), (x,))


class Lenient(nn.Module):
    """Calls layers with what only some of them take, as SpeechBrain does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x


def test_a_submodule_may_raise_within_try() -> None:
    module, x = nn.Sequential(Lenient(), nn.Linear(4, 2)).eval(), torch.randn(2, 4)
    torch.testing.assert_close(from_torch(module, (x,))(x), module(x))


def test_a_list_of_a_range_is_one_of_numbers() -> None:
    """As the axes to sum over are in losses of segmentation."""
    function, x = lambda x: x.sum(torch.arange(2, x.ndim).tolist()), torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(from_torch(Calls(function), (x,))(x), function(x))
