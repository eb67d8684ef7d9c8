"""Sizes that the values of tensors decide: found when the model runs, none and all of the elements included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F

from autocast import amp, from_torch, to_onnx, to_torch, vm
from autocast.errors import FallbackWarning, ImportModelError, InputError
from autocast.model import Model
from autocast.training import differentiate
from tests.frontend.helpers import Calls

pytestmark = pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")

ROWS, COLUMNS = 6, 8
COUNT = torch.tensor(3)
REPEATS = torch.tensor([1, 0, 2, 1, 1, 3])
ATTENTION = nn.MultiheadAttention(COLUMNS, 2, batch_first=True).eval().requires_grad_(False)


def _counted(n: torch.Tensor, most: int = ROWS) -> int:
    """The number in `n` as a size, which torch wants checked."""
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= most)
    return count


def _parted(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Parts whose sizes are known to be those of all rows together."""
    sizes = [_counted(n), _counted(ROWS - n)]
    torch._check(sum(sizes) == ROWS)
    first, second = x.split(sizes)
    return torch.cat([first * 2, second]) + x


def _padded(x: torch.Tensor) -> torch.Tensor:
    """One more query and key than there are elements larger than 0 in a row, with a mask that they share."""
    count = int((x > 0).sum(1).max()) + 1
    rows = torch.ones(2 * count, COLUMNS).view(2, count, COLUMNS) + x[0]
    mask = torch.zeros(2 * count).view(2, count)
    attended, _ = ATTENTION(rows, rows * 2, rows, mask, need_weights=False)
    return F.scaled_dot_product_attention(rows, rows, attended, mask[:, None]).sum((0, 1))


FOUND: dict[str, Callable[[torch.Tensor], object]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero of a scalar": lambda x: (x.sum() > 0).nonzero(),
    "rows of a mask": lambda x: F.gelu(x[x[:, 0] > 0]).softmax(-1),
    "elements of a mask": lambda x: x[x > 0].sum(),
    "elements of a mask that are written back": lambda x: x.masked_scatter(x > 0, x[x > 0] * 2),
    "masked_select by a larger mask": lambda x: torch.masked_select(x[0], x > 0) * 2,
    "masks of several axes": lambda x: x.reshape(2, 3, 4, 2)[:, x[:3, :4] > 0].sum(-1),
    "a mask and an index": lambda x: x[x[:, 0] > 0, torch.tensor([2])],
    "a mask behind an axis": lambda x: x.T.reshape(2, 4, ROWS)[:, :, x[:, 0] > 0] * 2,
    "nonzero of numbers": lambda x: torch.where(x > 1, float("nan"), x.relu()).nonzero(),
    "masks that part": lambda x: torch.cat([x[x[:, 0] > 0], x[x[:, 0] <= 0]]),
    "how many": lambda x: x.sum() + (x > 0).nonzero().shape[0],
    "unique": lambda x: torch.unique((2 * x).long(), return_inverse=True, return_counts=True),
    "bincount": lambda x: torch.bincount((2 * x).abs().long().flatten()),
    "two of one size": lambda x: x.new_zeros(ROWS, COLUMNS).index_add(
        0, torch.where(x[:, 0] > 0)[0], x[torch.where(x[:, 0] > 0)[0]]
    ),
    "of which torch computes none apart": lambda x: (
        F.batch_norm(x[x[:, 0] > 0], x[0], x[1].abs() + 1).roll(1, 0),
        torch.cdist(x[x[:, 0] > 0], x).logsumexp(1),
        F.scaled_dot_product_attention(*[x[x[:, 0] > 0][None, None]] * 3),
    ),
    "a number as a size": _padded,
    "product of complex numbers": lambda x: torch.view_as_real(torch.fft.rfft(x)[x[:, 0] > 0]),
}
COUNTED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a slice": lambda x, n: x[: _counted(n)] * 2,
    "a new tensor": lambda x, n: torch.zeros(_counted(n), COLUMNS) + x[:1],
    "a range": lambda x, n: torch.arange(_counted(n)),
    "ranges alone": lambda x, n: (torch.arange(n.item()), torch.arange(0, n.item() + 1, 2, dtype=torch.float32)),
    "a size and a factor": lambda x, n: (x * n.item(), torch.ones(_counted(n))),
    "equal steps": lambda x, n: (torch.linspace(-1, 2, n.item()), torch.logspace(0, 1, _counted(n)) * x[:1, :1]),
    "parts": _parted,
    "two sizes": lambda x, n: torch.ones(_counted(n), _counted(n + 1, ROWS + 1)) * x[0, 0],
}


def _same(got: object, expected: object) -> None:
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple | list) else [(got, expected)]
    for one, other in pairs:
        assert one.shape == other.shape
        torch.testing.assert_close(torch.as_tensor(one), other, check_dtype=False)


@pytest.mark.parametrize("name", FOUND)
def test_what_values_decide_has_any_size(name: str) -> None:
    module, x = Calls(FOUND[name]), torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    model = from_torch(module, (x,))
    runs = vm.compile(model), to_torch(model)
    for given in (x, x.flip(0), x.abs() + 1, -x.abs() - 1, torch.zeros_like(x)):
        for run in runs:
            _same(run(given), module(given))


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_are_sizes(name: str) -> None:
    module, x = Calls(COUNTED[name]), torch.randn(ROWS, COLUMNS)
    model = from_torch(module, (x, COUNT))
    assert not model.fallbacks
    run = vm.compile(model)
    for count in (3, 0, 1, ROWS):
        _same(run(x, torch.tensor(count)), module(x, torch.tensor(count)))


def test_rows_are_repeated_as_values_say() -> None:
    module, x = Calls(lambda x, n: torch.repeat_interleave(x, n, dim=0) + 1), torch.randn(ROWS, COLUMNS)
    run = vm.compile(from_torch(module, (x, REPEATS)))
    for repeats in (REPEATS, REPEATS.flip(0), torch.zeros_like(REPEATS)):
        _same(run(x, repeats), module(x, repeats))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.arange(x.nonzero().shape[0]),
        lambda x: torch.full((x.unique().shape[0],), 3).cumsum(0),
        lambda x: torch.bincount(x, minlength=x.unique().shape[0]),
    ],
    ids=["arange", "full", "bincount"],
)
def test_several_sizes_are_found_before_they_are_read(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = Calls(lambda x, y: (6 - made(x[:, 0]).sum()) * (6 - made(y[:, 0]).sum()))
    x, y = torch.tensor([[0, 2, 2, 3, 1]]).mT, torch.tensor([[5, 0, 0, 1, 1, 2]]).mT
    run = vm.compile(from_torch(module, (x, y)))
    for given in (x, 0 * x):
        _same(run(given, y), module(given, y))


@pytest.mark.parametrize("count", [-1, ROWS + 1])
@pytest.mark.parametrize("dynamic", [None, {"n": (0, 0, 1, ROWS)}], ids=["static", "dynamic"])
def test_a_size_that_the_module_forbids_is_an_error(count: int, dynamic: dict | None) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size <= x.shape[0])
        return x[:size] * 2

    run = vm.compile(from_torch(Calls(function), (torch.randn(ROWS, COLUMNS), COUNT), dynamic=dynamic))
    limit = "0 <= u0" if count < 0 else f"u0 <= (n|{ROWS})"
    with pytest.raises(InputError, match=f"decide a size.*expected {limit},"):
        run(torch.randn(ROWS, COLUMNS), torch.tensor(count))


def test_conditions_in_one_are_all_asked() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check((size >= 0) & (size <= x.shape[0]))
        return torch.ones(size)

    run = vm.compile(from_torch(Calls(function), (torch.randn(ROWS, COLUMNS), COUNT), dynamic={"n": (0, 0, 1, 99)}))
    with pytest.raises(InputError, match=f"{ROWS + 1} <= {ROWS} does not hold"):
        run(torch.randn(ROWS, COLUMNS), torch.tensor(ROWS + 1))


def test_a_check_that_is_no_comparison_is_refused() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = _counted(n)
        torch._check((size == 2) | (size == 3))
        return torch.ones(size)

    with pytest.raises(ImportModelError, match=r"the module checks .*; expected comparisons of sizes"):
        from_torch(Calls(function), (torch.randn(ROWS, COLUMNS), COUNT))


def test_a_size_that_is_computed_from_a_fraction_is_refused() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.max()) * n

    said = r"from a floating-point number .*; expected one of whole numbers. Try"
    if torch.__version__ < (2, 13):  # which itself exports no such size
        said = "Unknown symbol zuf0"
    with pytest.raises(ImportModelError, match=said):
        from_torch(Calls(function), (torch.randn(ROWS, COLUMNS), COUNT))


def test_a_result_that_is_too_long_for_what_it_indexes_is_an_error() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = (x > 0).nonzero().shape[0]
        torch._check(count <= y.shape[0])
        return y[:count]

    x, y = torch.arange(-3.0, 5.0), torch.randn(5)
    run = vm.compile(from_torch(Calls(function), (x, y)))
    _same(run(x, y), y[:4])
    with pytest.raises(InputError, match="6 <= 5 does not hold"):
        run(x + 2, y)


class _Sparse(nn.Module):
    """Layers of rows that values choose, and a sum of elements that values choose."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(COLUMNS, 16), nn.LayerNorm(16), nn.Linear(16, COLUMNS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.inner(x)).relu()
        chosen = torch.where(x[:, 1] > 0)[0]
        spread = torch.zeros_like(x).index_add(0, chosen, self.outer(hidden[chosen]))
        kept, waves = self.outer(hidden[x[:, 0] > 0]), torch.view_as_real(torch.fft.rfft(hidden)[x[:, 2] > 0].acosh())
        elements = torch.masked_select(hidden, hidden > 0.5)
        return kept.sum() + spread.square().mean() + elements.sum() + waves.square().mean()


@pytest.fixture(scope="module")
def sparse() -> tuple[nn.Module, torch.Tensor, Model]:
    torch.manual_seed(0)
    module, x = _Sparse(), torch.randn(16, COLUMNS)
    with pytest.warns(FallbackWarning, match="aten.acosh"):
        return module, x, from_torch(module, (x,))


def test_casts_surround_what_values_decide(sparse: tuple[nn.Module, torch.Tensor, Model]) -> None:
    module, x, model = sparse
    low = amp.autocast(model, (x,))
    run = vm.compile(low)
    for given in (x, -x):
        torch.testing.assert_close(torch.as_tensor(run(given)), module(given), rtol=2e-2, atol=2e-2)
    assert model.fallbacks == {"aten.acosh.default": 1}  # of complex numbers: the others are kernels of ours


def test_gradients_pass_what_values_decide(sparse: tuple[nn.Module, torch.Tensor, Model]) -> None:
    module, x, model = sparse
    function = model.mod["main"]
    gradients = differentiate(function, list(function.params[1:]))
    run = vm.compile(model.replace(mod=tvm.IRModule({"main": gradients})))
    for given in (x, -x):
        module.zero_grad()
        module(given).backward()
        expected = {name.replace(".", "_"): parameter.grad for name, parameter in module.named_parameters()}
        for variable, got in zip(function.params[1:], run(given)[1:], strict=True):
            torch.testing.assert_close(torch.as_tensor(got), expected[variable.name])


def test_torch_knows_what_values_decide(sparse: tuple[nn.Module, torch.Tensor, Model]) -> None:
    module, x, model = sparse
    again = to_torch(model)
    for given in (x, -x):
        torch.testing.assert_close(again(given), module(given))


def test_the_torch_module_checks_sizes_too() -> None:
    again = to_torch(from_torch(Calls(COUNTED["a slice"]), (torch.randn(ROWS, COLUMNS), COUNT)))
    assert again(torch.randn(ROWS, COLUMNS), torch.tensor(2)).shape == (2, COLUMNS)
    with pytest.raises(RuntimeError, match="expected u0 <= 6"):
        again(torch.randn(ROWS, COLUMNS), torch.tensor(ROWS + 1))


def test_onnx_knows_what_values_decide(tmp_path: Path) -> None:
    module, x = Calls(lambda x: x[torch.where(x[:, 0] > 0)[0]] * 2), torch.randn(ROWS, COLUMNS)
    to_onnx(from_torch(module, (x,)), tmp_path / "chosen.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "chosen.onnx")
    for given in (x, -x):
        (result,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        np.testing.assert_allclose(result, module(given).numpy(), rtol=1e-6)


@pytest.mark.parametrize("is_item", [True, False], ids=["item", "tensor"])
def test_int_of_a_number_of_a_tensor_is_one_without_sizes_that_vary(is_item: bool) -> None:
    """torch.export would make a number of it; `int` is another function in the files that ask for it."""

    def mask(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(torch.max(lengths).item()) if is_item else int(lengths.max())
        return torch.arange(longest).expand(lengths.shape[0], longest) >= lengths[:, None]

    model = from_torch(Calls(mask), (torch.randn(2, 20), torch.tensor([20, 13])))
    for lengths in ([20, 13], [3, 4]):
        given = torch.randn(2, 20), torch.tensor(lengths)
        assert torch.equal(model(*given), mask(*given))
