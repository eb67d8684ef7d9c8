"""Modules that decide by sizes: refused where a size that may come takes another way and this changes a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import to_torch
from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.frontend.exporting.conditions import combinations
from tests.frontend.helpers import Calls, assert_close, asserting


@pytest.mark.parametrize(
    ("decides", "why"),
    [
        (lambda x: x * 2 if x.shape[0] == 7 else x + 1, "for n = 7 this does not hold: .*!= 7"),
        (lambda x: x * 2 if x.shape[0] % 2 else x + 1, "for n = 3 this does not hold: .*% 2"),
        (lambda x: x * 2 if x.shape[0] % (x.shape[0] - 7) == 2 else x + 1, "for n = 7 this does not hold: .*% .*!= 2"),
    ],
    ids=["one size", "odd sizes", "a division by 0"],
)
@pytest.mark.parametrize("row", [(0, 0), (0, 0, 1, 16)], ids=["inferred", "bounds"])
def test_a_module_that_is_another_for_other_sizes_is_refused(decides: Any, why: str, row: tuple[int, ...]) -> None:
    """Without bounds torch exports the branch of the example for all sizes, and says so in a condition."""
    with pytest.raises(ImportModelError, match=f"Calls decides by sizes: {why}"):
        from_torch(Calls(decides), (torch.ones(4, 3),), dynamic={"n": row})


def test_how_rows_lie_in_memory_keeps_no_size_out() -> None:
    """torch takes such a module for one of three rows or more."""
    module, example = Calls(lambda x: (x[1:] - x[:-1], x[:, 0][1:].reshape(-1, 1))), (torch.ones(4, 3),)
    assert from_torch(module, example, dynamic={"n": (0, 0)}).main.attrs["tir_var_lower_bound"]["n"] == 1
    model = to_torch(from_torch(module, example, dynamic={"n": (0, 0, 1, 16)}))
    for rows in (1, 2, 3, 9):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
        assert_close(model(x), module(x))


def test_a_size_for_which_a_module_is_another_is_kept_out_as_well() -> None:
    module = Calls(lambda x: (x[:, 0][1:] - x[:, 0][:-1]) * (2 if x.shape[0] >= 3 else 5))
    with pytest.raises(ImportModelError, match="torch exports it for n from 3 to 16"):
        from_torch(module, (torch.ones(4, 3),), dynamic={"n": (0, 0, 1, 16)})


def test_of_more_sizes_than_memory_holds_some_are_tried() -> None:
    model = from_torch(Calls(lambda x: x[1:] * 2), (torch.ones(4, 3),), dynamic={"n": (0, 0, 2, 2**31 - 1)})
    assert_close((model(torch.ones(600, 3)),), (torch.full((599, 3), 2.0),))
    tried = combinations({"n": (2, 2**31 - 1)})["n"]
    assert {*range(2, 1000), 2**31 - 1} <= {*tried}
    assert all(((tried > size) & (tried < 1.3 * size)).any() for size in (5_000, 10**6, 10**9))


def test_a_branch_that_no_size_within_the_bounds_takes_is_none() -> None:
    module = Calls(lambda x: x * 2 if x.shape[0] == 7 else x + 1)
    model = from_torch(module, (torch.ones(4, 3),), dynamic={"n": (0, 0, 2, 6)})
    assert_close((model(torch.ones(6, 3)),), (torch.full((6, 3), 2.0),))


def test_conditions_that_torch_cannot_prove_hold_for_every_size_that_may_come() -> None:
    """torch.export refuses `n // 2 <= n`."""
    module = Calls(lambda x: torch.stack([part.float() for part in x.topk(x.shape[0] // 2, 0)]))
    model = from_torch(module, (torch.randn(8, 3),), dynamic={"n": (0, 0, 4, 16)}, fallback="error")
    for size in (4, 11):
        x = torch.randn(size, 3)
        assert_close((model(x),), (module(x),))


_ONE = {
    "equal": lambda x: x * 2 if x.shape[0] == 1 else x + 1,
    "larger": lambda x: x + 1 if x.shape[0] > 1 else x * 2,
    "product": lambda x: x + 1 if x.shape[0] * 3 != 3 else x * 2,
    "with a drawn number": lambda x: x + torch.rand(()) if x.shape[0] == 1 else x + 1,
    "asserted": lambda x: _asserted(x.shape[0] > 1, x + 1),
}


def _asserted(holds: bool, x: torch.Tensor) -> torch.Tensor:
    assert holds
    return x


@pytest.mark.parametrize("decides", _ONE.values(), ids=_ONE)
def test_a_module_that_is_another_for_a_size_of_one_takes_two_or_more(decides: Any) -> None:
    """torch.export takes sizes that vary for larger than 1 without a word."""
    model = from_torch(Calls(decides), (torch.ones(4, 3),), dynamic={"n": (0, 0)})
    assert_close((model(torch.ones(2, 3)),), (torch.full((2, 3), 2.0),))
    with pytest.raises(InputError, match="expected n of 2 or more"):
        model(torch.ones(1, 3))
    with pytest.raises(ImportModelError, match=r"decides by sizes \(.*test_decisions.py:\d+\): for n = 1"):
        from_torch(Calls(decides), (torch.ones(4, 3),), dynamic={"n": (0, 0, 1, 16)})


def test_a_decision_by_a_size_of_one_that_changes_no_number_leaves_the_size_free() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=bool(x.shape[1] > 1))

    model = from_torch(Calls(attention), (torch.randn(2, 5, 8),), dynamic={"length": (0, 1)})
    for length in (1, 3):
        x = torch.randn(2, length, 8)
        assert_close((model(x),), (attention(x),))


def test_a_size_of_one_that_others_lead_to_is_found() -> None:
    class Halves(nn.Module):
        """A convolution that halves a picture, and another function of rows than of one row."""

        def __init__(self) -> None:
            super().__init__()
            self.halve = nn.Conv2d(3, 4, 3, stride=2, padding=1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """(n, 3, height, width) to (n, 4, height / 2, width / 2)."""
            x = self.norm(self.halve(x))
            return x if x.shape[2] == 1 else x * 2

    module = Halves().eval()
    model = from_torch(module, (torch.randn(2, 3, 9, 8),), dynamic={"height": (0, 2), "width": (0, 3)})
    x = torch.randn(2, 3, 3, 1)
    assert_close((model(x),), (module(x).detach(),))
    with pytest.raises(InputError, match="expected height of 3 or more"):
        model(torch.randn(2, 3, 2, 8))


@pytest.mark.parametrize("then", ["linear", "attention", "LSTM"])
def test_maps_of_pictures_of_any_size_are_flattened(then: str) -> None:
    """Torch asks whether the maps have one row or column, as it does of what lies how in memory."""
    halve, layer = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.LSTM(8, 4) if then == "LSTM" else nn.Linear(8, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows = halve(x).flatten(2).permute(2, 0, 1)
        if then == "attention":
            rows = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        return layer(rows)[0] if then == "LSTM" else layer(rows)

    module = Calls(forward)
    module.halve, module.layer = halve, layer
    sizes = {"batch": (0, 0), "height": (0, 2), "width": (0, 3)}
    model = from_torch(module, (torch.randn(2, 3, 9, 8),), dynamic=sizes)
    for shape in ((1, 3, 2, 2), (3, 3, 5, 1), (1, 3, 1, 1), (2, 3, 6, 7)):
        x = torch.randn(shape)
        assert_close((model(x),), (module(x).detach(),))


def test_rows_are_halved_where_there_are_enough_left() -> None:
    """Ends are aligned by a quotient of sizes less one, which is none of one row."""
    halve = Calls(lambda x: nn.functional.interpolate(x, scale_factor=0.5, mode="linear", align_corners=True))
    model = from_torch(halve, (torch.randn(1, 2, 6),), dynamic={"n": (0, 2)})
    for size in (4, 9):
        x = torch.randn(1, 2, size)
        assert_close((model(x),), (halve(x),))
    with pytest.raises(InputError, match="expected n of 4 or more"):
        model(torch.randn(1, 2, 3))


def test_an_axis_that_is_dropped_where_its_size_is_one_is_at_least_two() -> None:
    model = from_torch(Calls(lambda x: x.squeeze() * 2), (torch.randn(3, 4),), dynamic={"n": ("*", 0)})
    assert model(torch.randn(2, 4)).shape == (2, 4)
    with pytest.raises(InputError, match="expected n of 2 or more"):
        model(torch.randn(1, 4))
    with pytest.raises(ImportModelError, match=r"where n is less than 2: aten.squeeze.* gives \(4,\), not \(1, 4\)"):
        from_torch(Calls(lambda x: x.squeeze()), (torch.randn(3, 4),), dynamic={"n": ("*", 0, 1, 8)})


def test_what_the_comparison_with_a_module_changes_of_it_is_undone() -> None:
    class Counts(nn.Module):
        """Counts its calls, and doubles in two ways."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("other", torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """(n) to (n)."""
            self.calls += 1
            return x * 2 if x.shape[0] == 1 else x + x * self.other

    module = Counts()
    calls: list[tuple[int, ...]] = []
    module.register_forward_hook(lambda _, inputs, __: calls.append(tuple(inputs[0].shape)))
    model = from_torch(module, (torch.randn(3),), dynamic={"n": (0, 0)})
    assert (1,) in calls
    assert float(module.calls) == 0
    assert module.other._version == 0, "what is written counts as changed"
    assert_close((model(torch.ones(1)),), (torch.full((1,), 2.0),))


def test_what_values_are_asserted_to_be_decides_nothing() -> None:
    inputs = torch.ones(4, 3), torch.tensor([3, 4])
    assert_close((from_torch(Calls(asserting), inputs)(*inputs),), (torch.full((4, 3), 2.0),))


@pytest.mark.parametrize("bound", [(1, 16), ()], ids=["bounded", "as torch infers"])
def test_whether_a_crop_is_copied_decides_nothing(bound: tuple[int, ...]) -> None:
    class Cropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(16, 16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            height, width = x.shape[-2:]
            return x.flatten(2).mT + self.table[:height, :width].reshape(1, height * width, 8)

    module, x = Cropped(), torch.randn(2, 8, 6, 10)
    model = from_torch(module, (x,), dynamic={"height": ("x", 2, *bound), "width": ("x", 3, *bound)})
    for sizes in ((6, 10), (16, 16), (3, 16), (16, 2), (1, 1)):
        x = torch.randn(2, 8, *sizes)
        torch.testing.assert_close(model(x), module(x))


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")  # torch pools, in windows of each size
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True)[1],
        lambda x: F.adaptive_avg_pool2d(x, ((2 * x.shape[2] + 2) // 3, x.shape[3] - 1)),
        lambda x: F.interpolate(x, scale_factor=0.7, mode="area"),
        lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
    ],
    ids=["places of maxima", "means", "areas", "the largest"],
)
def test_what_tables_of_torch_decide_is_not_decided_for_all_sizes(function: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(2, 3, 12, 8)
    model = from_torch(Calls(function), (x,), dynamic={"h": (0, 2, 4, 32), "w": (0, 3, 4, 32)})
    for sizes in ((12, 8), (9, 8), (16, 5), (7, 31)):
        x = torch.randn(2, 3, *sizes)
        found, expected = model(x), function(x)
        for got, want in zip(*([v] if isinstance(v, torch.Tensor) else v for v in (found, expected)), strict=True):
            torch.testing.assert_close(got, want)


def test_padded_windows_of_images_of_any_size() -> None:
    class Windows(nn.Module):
        """A linear layer over windows of 4 x 4, as far as an image fills them."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, h, w, c = x.shape
            x = F.pad(x, (0, 0, 0, -w % 4, 0, -h % 4))
            rows, columns = x.shape[1] // 4, x.shape[2] // 4
            windows = x.view(b, rows, 4, columns, 4, c).transpose(2, 3).reshape(-1, 16, c)
            y = self.layer(windows).view(b, rows, columns, 4, 4, c).transpose(2, 3)
            return y.reshape(b, 4 * rows, 4 * columns, c)[:, :h, :w]

    module = Windows()
    model = from_torch(module, (torch.randn(2, 10, 13, 8),), dynamic={"h": ("x", 1), "w": ("x", 2)})
    for sizes in ((10, 13), (4, 3), (8, 9), (12, 5)):
        x = torch.randn(2, *sizes, 8)
        torch.testing.assert_close(model(x), module(x))
