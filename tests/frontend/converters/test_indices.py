"""Computed indices beyond a tensor, at which torch raises: models read and write within it, at documented places.

Those that are inputs are refused: see `tests/vm/test_row_numbers.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from autocast import vm
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls

TABLE = torch.arange(12.0).reshape(4, 3)
GIVEN, ZERO = torch.tensor([0, 3, 4, 100, -1, -4, -5, 10**12, -(10**12)]), torch.tensor(0)


def _clipped(places: torch.Tensor) -> torch.Tensor:
    return places.clamp(0, 3)


def _wrapped(places: torch.Tensor) -> torch.Tensor:
    return places % 4


def _nearest(places: torch.Tensor) -> torch.Tensor:
    return torch.where(places < 0, places + 4, places).clamp(0, 3)


Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: What is asked for at places beyond the table, and the places that it is done at.
CASES: dict[str, tuple[Function, Callable[[torch.Tensor], torch.Tensor]]] = {
    "embedding": (lambda t, i: F.embedding(i, t), _clipped),
    "index_select": (lambda t, i: t.index_select(0, i), _clipped),
    "one index": (lambda t, i: t[i], _wrapped),
    "one index of another axis": (lambda t, i: t.T[:, i], _wrapped),
    "two indices": (lambda t, i: t[i, i * 0], _nearest),
    "gather": (lambda t, i: t.gather(0, i[:, None].expand(9, 3)), _nearest),
    "scatter": (lambda t, i: t.scatter(0, i[:, None].expand(9, 3), 9.0), _nearest),
    "scatter_add": (lambda t, i: t.scatter_add(0, i[:, None].expand(9, 3), torch.ones(9, 3)), _nearest),
    "index_put": (lambda t, i: t.index_put((i,), torch.ones(())), _nearest),
    "index_add": (lambda t, i: t.index_add(0, i, torch.ones(9, 3)), _nearest),
    "nll_loss": (lambda t, i: F.nll_loss(t.T, i[:3]), _nearest),
}


@pytest.fixture(scope="module")
def results() -> dict[str, torch.Tensor]:
    module = Calls(lambda t, i, more: tuple(function(t, i + more) for function, _ in CASES.values()))
    model = from_torch(module, (TABLE, GIVEN % 4, ZERO), fallback="error")
    return dict(zip(CASES, vm.compile(model)(TABLE, GIVEN, ZERO), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_places_beyond_a_tensor_are_within_it(name: str, results: dict[str, torch.Tensor]) -> None:
    function, within = CASES[name]
    assert torch.equal(results[name], function(TABLE, within(GIVEN)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, index: x[index],
        lambda x, index: torch.nn.functional.embedding(index, x),
        lambda x, index: x.index_select(0, index),
        lambda x, index: x[index % x.shape[0]],
        lambda x, index: torch.take(x, index),
    ],
    ids=["x[index]", "embedding", "index_select", "modulo", "take"],
)
def test_what_is_looked_up_among_no_rows_is_0(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    index = torch.tensor([0, 2])
    module = Calls(lambda x, index, more: function(x, index + more))
    model = from_torch(module, (torch.randn(5, 300), index, ZERO), dynamic={"rows": ("args.0", 0, 0, 8)})
    assert torch.count_nonzero(model(torch.zeros(0, 300), index, ZERO)) == 0
    x = torch.randn(3, 300)
    torch.testing.assert_close(model(x, index, ZERO), function(x, index))
