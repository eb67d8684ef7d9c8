"""Sizes that are computed of others, and what is cut, counted and scaled by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, assert_close, runner

#: torch 2.15 takes inputs that **kwargs name to vary, and knows that n - 1 is the smaller one of n and n - 1.
_NEWER = torch.__version__ >= (2, 15)


def test_a_tensor_is_repeated_as_often_as_a_size_says() -> None:
    module = Calls(
        lambda x, y: y.repeat(x.shape[0], 1, 2) + y.sum(-1, keepdim=True).repeat(x.shape[0], x.shape[1] // 3, 1)
    )
    y = torch.randn(2, 3, 5)
    run = runner(from_torch(module, (torch.randn(3, 3), y), dynamic={"batch": (0, 0)}, fallback="error"))
    for batch in (1, 7):
        x = torch.randn(batch, 3)
        assert_close(run(x, y), (module(x, y),))


_SLICED = {
    "inside": lambda x: x[1:-1],
    "beyond the end": lambda x: x[2:100],
    "before the begin": lambda x: x[-100:3],
    "steps": lambda x: x[-100:90:3],
    "half": lambda x: x[x.shape[0] // 2 : x.shape[0] + 5],
    "written": lambda x: x.slice_scatter(torch.zeros_like(x[2:100]), 0, 2, 100),
    "none": lambda x: x[3:2].sum() + x,
}


@pytest.mark.parametrize("sliced", _SLICED.values(), ids=_SLICED)
@pytest.mark.parametrize("bounds", [(), (3, 64)], ids=["inferred", "bounds"])
def test_slices_end_where_the_axis_does(sliced: Any, bounds: tuple[int, ...]) -> None:
    model = from_torch(Calls(sliced), (torch.randn(6, 3),), dynamic={"n": (0, 0, *bounds)}, fallback="error")
    for size in (3, 4, 7, 31):
        x = torch.randn(size, 3)
        assert_close((model(x),), (sliced(x),))


@pytest.mark.parametrize("function", [lambda x: x.repeat(2, 1)[:3], lambda x: torch.cat([x, x[:1]])[-3:]])
def test_a_slice_of_more_than_there_is_where_a_size_is_one(function: Any) -> None:
    """torch takes sizes for 2 or more, and has not even a condition for these."""
    x = torch.randn(5, 3)
    with pytest.raises(
        ImportModelError, match=r"another where n is less than 2: aten.slice.Tensor .* gives \(2, 3\), not \(3, 3\)"
    ):
        from_torch(Calls(function), (x,), dynamic={"n": (0, 0, 1, 40)})
    model = from_torch(Calls(function), (x,), dynamic={"n": (0, 0)})
    assert_close((model(x[:2]),), (function(x[:2]),))
    with pytest.raises(InputError, match="expected n of 2 or more"):
        model(x[:1])


def test_a_size_that_torch_settles_while_it_decomposes_is_refused() -> None:
    def places(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool3d(x.repeat(1, 2, 1)[None], (1, 3, 2), return_indices=True)[1]

    with pytest.raises(ImportModelError, match=r"works for size 2 of 'args\.0', axis 1 only"):
        from_torch(Calls(places), (torch.randn(3, 2, 6),), dynamic={"n": ("*", 1)})


def test_a_slice_of_what_may_be_empty_is_refused_unless_it_is_empty_then() -> None:
    x, rows = torch.randn(5, 3), {"n": (0, 0, 0, 40)}
    with pytest.raises(
        ImportModelError, match=r"where n is less than 2: aten.slice.Tensor .* gives \(0, 3\), not \(1, 3\)"
    ):
        from_torch(Calls(lambda x: x[:1] * 2), (x,), dynamic=rows)
    model = from_torch(Calls(lambda x: x[:, :1] * 2), (x,), dynamic=rows)
    assert model(x[:0]).shape == (0, 1)


def test_a_slice_that_the_bounds_do_not_leave_room_for_is_refused() -> None:
    with pytest.raises(
        ImportModelError, match=r"another where n is less than 2: aten.slice.Tensor .* gives \(0, 3\), not \(-1, 3\)"
    ):
        from_torch(Calls(lambda x: x[1:-1]), (torch.randn(6, 3),), dynamic={"n": (0, 0, 1, 40)})


@pytest.mark.parametrize("size", [1, 2])
def test_a_slice_of_what_may_be_shorter_than_its_bounds_is_empty_or_refused(size: int) -> None:
    """For fewer rows than torch takes for granted the sizes that it computes are negative."""
    model = from_torch(Calls(lambda x: x[1:-1]), (torch.randn(6, 3),), dynamic={"n": (0, 0)})
    if size == 2:
        assert model(torch.randn(2, 3)).shape == (0, 3)
    else:
        with pytest.raises(InputError, match="expected n of 2 or more"):
            model(torch.randn(1, 3))


_COUNTED = {
    "down": lambda n: torch.arange(n - 1, -1, -1),
    "down by threes": lambda n: torch.arange(n, -n, -3, dtype=torch.float32),
    "halves": lambda n: torch.arange(0, n, 0.5),
    "up": lambda n: torch.arange(1, n + 1, dtype=torch.int32),
    "rounded up": lambda n: torch.arange(math.ceil(n / 2)),
    "rounded down": lambda n: torch.zeros(math.floor(n * 0.6) + 1),
}


@pytest.mark.parametrize("counted", _COUNTED.values(), ids=_COUNTED)
def test_numbers_are_counted_as_often_as_sizes_say(counted: Any) -> None:
    module = Calls(lambda x: counted(x.shape[0]))
    model = from_torch(module, (torch.randn(6, 3),), dynamic={"n": (0, 0)}, fallback="error")
    for size in (3, 4, 10, 21):
        assert torch.equal(model(torch.randn(size, 3)), counted(size))


def test_a_size_that_floating_point_numbers_round_otherwise_is_as_they_round_it() -> None:
    """0.7 * 90 is 62.99999999999999."""
    module = Calls(lambda x: torch.zeros(math.floor(x.shape[0] * 0.7)))
    model = from_torch(module, (torch.ones(9),), dynamic={"n": (0, 0)})
    assert [len(model(torch.ones(size))) for size in (10, 90)] == [7, 62]


def test_a_size_that_no_line_of_the_module_computes_is_refused_where_numbers_round_it_otherwise() -> None:
    with pytest.raises(ImportModelError, match="is computed with CeilToInt"):
        from_torch(Calls(lambda x: torch.arange(0, 1, 1 / x.shape[0])), (torch.ones(9),), dynamic={"n": (0, 0)})


@pytest.mark.parametrize("bounds", [(), (2, 64)])
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True},
        {"scale_factor": 2.0, "mode": "bicubic"},
        {"scale_factor": (1.5, 2.0), "mode": "bilinear", "recompute_scale_factor": True},
        {"scale_factor": 1.5, "mode": "nearest-exact"},
    ],
)
def test_pictures_of_any_size_are_scaled(options: dict[str, Any], bounds: tuple[int, ...]) -> None:
    module = Calls(lambda x: nn.functional.interpolate(x, **options))
    sizes = {"height": ("*", 2, *bounds), "width": ("*", 3, *bounds)}
    model = from_torch(module, (torch.randn(1, 2, 5, 6),), dynamic=sizes)
    for height, width in ((2, 3), (9, 4)):
        x = torch.randn(1, 2, height, width)
        assert_close([model(x)], [module(x)])


def test_numbers_that_are_computed_of_sizes_are_numbers() -> None:
    module = Calls(lambda x: x * (x.shape[0] / (x.shape[1] + 0.5)) ** -0.5)
    model = from_torch(module, (torch.randn(3, 4),), dynamic={"n": ("*", 0), "m": ("*", 1)})
    for shape in ((2, 7), (1, 3)):
        x = torch.randn(shape)
        assert_close([model(x)], [module(x)])


def _windows(x: torch.Tensor) -> torch.Tensor:
    x = nn.functional.pad(x, (0, (4 - x.shape[3] % 4) % 4, -x.shape[2] % 4, 0), value=-1.0)
    return x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4))


def _warped(x: torch.Tensor, align_corners: bool) -> torch.Tensor:
    matrix = torch.tensor([[[0.5, 0.1, 0.0], [0.2, 0.9, -0.1]]]).expand(x.shape[0], 2, 3)
    grid = nn.functional.affine_grid(matrix, list(x.shape), align_corners=align_corners)
    return nn.functional.grid_sample(x, grid, align_corners=align_corners)


_OF_PICTURES = {
    "padded to windows": _windows,
    "a constant for each size": lambda x: torch.full((2,), x.shape[2]) + torch.full_like(x, x.shape[3]).sum(),
    "rows pooled": lambda x: nn.functional.max_pool1d(x[:, 0], 3, stride=2, padding=1, ceil_mode=True),
    "columns pooled, with places": lambda x: nn.functional.max_pool1d(x[:, :, :, 0], 2, return_indices=True)[0],
    "coordinates": lambda x: x + torch.linspace(-1, 1, x.shape[3]) + torch.linspace(3.0, -2.0, x.shape[2])[:, None],
    "warped": lambda x: _warped(x, False),
    "warped between corners": lambda x: _warped(x, True),
}


@pytest.mark.parametrize("function", _OF_PICTURES.values(), ids=_OF_PICTURES)
def test_functions_of_pictures_of_any_size(function: Any) -> None:
    sizes = {"batch": (0, 0), "height": (0, 2), "width": (0, 3)}
    model = from_torch(Calls(function), (torch.randn(2, 3, 8, 10),), dynamic=sizes, fallback="error")
    for shape in ((2, 3, 4, 8), (1, 3, 5, 7), (3, 3, 9, 6)):
        x = torch.randn(shape)
        assert_close((model(x),), (function(x),))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ torch.eye(x.shape[1]),
        lambda x: torch.eye(x.shape[0], x.shape[1], dtype=torch.int64),
    ],
    ids=["square", "oblong"],
)
def test_identities_are_of_any_size(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of 256 and more torch's own decomposition counts in uint16, in which it has no kernel."""
    model = from_torch(Calls(function), (torch.randn(5, 7),), dynamic={"n": (0, 0, 1, 400), "m": (0, 1, 1, 400)})
    for shape in ((5, 7), (1, 1), (300, 260)):
        x = torch.randn(shape)
        torch.testing.assert_close(model(x), function(x))


def test_diagonals_of_any_length_are_written() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        products = x @ x.mT
        products.diagonal(1).fill_(0.0)
        products.diagonal().copy_(x[:, 0])
        return products

    least = 3 if _NEWER else 1  # torch 2.15 itself exports a diagonal beside the middle for no less
    model = from_torch(Calls(forward), (torch.randn(5, 7),), dynamic={"n": (0, 0, least, 64)}, fallback="error")
    for size in (5, least, 9):
        x = torch.randn(size, 7)
        torch.testing.assert_close(model(x), forward(x))


def _own(scores: torch.Tensor) -> torch.Tensor:
    """Each row without its element of the diagonal."""
    return scores[~torch.eye(scores.shape[0], dtype=torch.bool)].view(scores.shape[0], -1)


def _contrast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The logits of SimCLR's loss."""
    rows = [torch.cat([a @ b.T, _own(a @ a.T)], 1), torch.cat([b @ a.T, _own(b @ b.T)], 1)]
    return torch.cat(rows, 0).log_softmax(1)


def _chosen(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[a > -9].view(a.shape[0], -1) * 2 + b[b > -9].view(a.shape[0], -1)


@pytest.mark.parametrize("function", [_contrast, _chosen])
def test_sizes_that_values_decide_may_agree(function: Callable[..., torch.Tensor]) -> None:
    """Each has a name of its own, and torch knows which are one."""
    given = torch.randn(6, 8), torch.randn(6, 8)
    model = from_torch(Calls(function), given, fallback="error")
    torch.testing.assert_close(model(*given), function(*given))


def test_sizes_that_do_not_agree_after_all_are_refused() -> None:
    model = from_torch(Calls(_chosen), (torch.randn(6, 8), torch.randn(6, 8)), fallback="error")
    lower = torch.randn(6, 8)
    lower[:, 0] = -10
    with pytest.raises(InputError):
        model(torch.randn(6, 8), lower)


class Padded(nn.Module):
    """A convolution whose input is padded to whole frames, as encodec computes it."""

    def __init__(self, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.total, self.stride = nn.Conv1d(4, 4, kernel, stride), kernel - stride, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = (x.shape[-1] - self.stride) / self.stride + 1
        extra = (math.ceil(frames) - 1) * self.stride + self.stride - x.shape[-1]
        return self.conv(nn.functional.pad(x, (self.total, extra)))


def test_lengths_that_are_rounded_apart_may_agree() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = Padded(3), Padded(1), Padded(1), Padded(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.d(self.c(x) + self.b(self.a(x).relu()))

    module = Residual().eval()
    model = from_torch(module, (torch.randn(2, 4, 16),), dynamic={"n": ("x", 2, 8, 64)}, fallback="error")
    for length in (8, 17, 33):
        x = torch.randn(2, 4, length)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_diagonal_of_a_part_is_read_whatever_the_batch() -> None:
    module = Calls(lambda x: torch.diagonal(x[..., :2, 1:], 0, -2, -1) + torch.diagonal(x, 1, 2, 1)[:, :1])
    model = from_torch(module, (torch.randn(2, 3, 3),), dynamic={"batch": (0, 0, 1, 16)}, fallback="error")
    for batch in (1, 5):
        x = torch.randn(batch, 3, 3)
        torch.testing.assert_close(model(x), module(x))


def test_bounds_of_a_sounds_length_are_tried() -> None:
    """More sizes than one would call a module with: conditions are computed of all at once."""

    def heads(x: torch.Tensor) -> torch.Tensor:
        frames = F.conv1d(F.conv1d(x[:, None], torch.ones(8, 1, 10), stride=5), torch.ones(8, 8, 8), stride=4)
        batch, _, count = frames.shape
        parts = frames.mT.reshape(batch, count, 2, 4).transpose(1, 2).reshape(batch * 2, count, 4)
        return torch.bmm(parts, parts.mT).softmax(-1).view(batch, 2, count, count).sum(1)

    model = from_torch(Calls(heads), (torch.randn(2, 1600),), dynamic={"n": (0, 1, 400, 480000)})
    for length in (400, 1234):
        x = torch.randn(2, length)
        torch.testing.assert_close(model(x), heads(x))


def test_sizes_of_what_is_given_by_any_name_vary_where_torch_lets_them() -> None:
    class Named(nn.Module):
        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return 2 * given["x"]

    x = torch.randn(3, 4)
    torch.testing.assert_close(from_torch(Named(), (), example_kwargs={"x": x})(x), 2 * x)
    if _NEWER:
        model = from_torch(Named(), (), example_kwargs={"x": x}, dynamic={"n": ("*", 0)})
        torch.testing.assert_close(model(torch.ones(5, 4)), torch.full((5, 4), 2.0))
        return
    with pytest.raises(ImportModelError, match=r"takes by \*\*kwargs alone: name them in its signature"):
        from_torch(Named(), (), example_kwargs={"x": x}, dynamic={"n": ("*", 0)})


def test_a_size_that_a_reshape_is_given_is_that_number() -> None:
    """Where -1 is left to torch, it has a quotient for the other sizes, too."""

    def windows(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, (8 - x.shape[-1] % 8) % 8))
        return padded.reshape(x.shape[0], -1, 8) + torch.arange(8.0)

    model = from_torch(Calls(windows), (torch.randn(2, 5),), dynamic={"n": ("args.0", 1, 2, 40)})
    for size in (2, 8, 9, 40):
        x = torch.randn(2, size)
        assert_close((model(x),), (windows(x),))


def test_a_mask_is_of_the_sizes_that_it_chooses_among() -> None:
    """torch compares them when it runs, so they have names of their own."""

    def choose(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[mask == 2] = -1.0
        return y[:, None].expand(-1, 3, -1) + 1

    axes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    example = torch.randn(2, 16), torch.ones(2, 16, dtype=torch.int64)
    model = from_torch(Calls(choose), example, dynamic={"args.0": axes, "args.1": axes})
    for shape in ((2, 16), (5, 7)):
        x, mask = torch.randn(shape), torch.randint(1, 3, shape)
        assert_close((model(x, mask),), (choose(x, mask),))
