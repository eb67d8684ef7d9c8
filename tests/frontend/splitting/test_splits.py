"""Operators that are split by formulas of ours, against torch's own kernels in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from autocast import vm
from autocast.frontend import from_torch, translate
from autocast.frontend.splitting.decompose import split
from autocast.frontend.splitting.foreach import FOREACH
from autocast.frontend.splitting.splits import SPLITS
from tests.frontend.helpers import Calls

aten = torch.ops.aten

_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _agree(name: str, *args: object) -> None:
    """What an operator of torch computes is what it is split into."""
    operator = getattr(aten, name).default
    got, expected = SPLITS[operator](*args), operator(*args)
    pairs = ((got, expected),) if isinstance(got, torch.Tensor) else zip(got, expected, strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def _grid(*shape: int) -> torch.Tensor:
    """Places in an image and around it, on its border too."""
    grid = torch.rand(*shape, dtype=torch.float64) * 3 - 1.5
    grid.view(-1)[:8] = torch.tensor([-1.0, 1, 0, -1, 1, 0.5, 1, -1])
    return grid


@pytest.mark.parametrize("channels", [3, 9], ids=["few channels", "rows"])
@pytest.mark.parametrize("sizes", [(4, 5), (1, 5), (1, 1), (4, 5, 3), (2, 1, 1)], ids=str)
def test_grids_are_sampled_as_torch_samples_them(sizes: tuple[int, ...], channels: int) -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, channels, *sizes, dtype=torch.float64), _grid(2, *(3, 4, 2)[: len(sizes)], len(sizes))
    name = f"grid_sampler_{len(sizes)}d"
    for how in product(range(3 if len(sizes) == 2 else 2), range(3), (False, True)):
        _agree(name, x, grid, *how)
        adjoint = torch.randn(2, channels, *grid.shape[1:-1], dtype=torch.float64)
        _agree(f"{name}_backward", adjoint, x, grid, *how, [True, True])


def test_what_grids_are_split_into_is_split_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []

    def noted(program: Any, calls: Any, tried: Any) -> Any:
        left.append({str(node.target) for node in calls})
        return split(program, calls, tried)

    monkeypatch.setattr(translate, "split", noted)
    from_torch(Calls(F.grid_sample), (torch.randn(1, 2, 4, 5), torch.rand(1, 3, 3, 2)))
    assert left == [{"aten.grid_sampler_2d.default"}, set()]


def test_grids_of_no_numbers_make_what_torch_makes() -> None:
    """NaN in images and 0 in volumes; what is outside does not meet infinities in the image."""
    numbers = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 0.3])
    for axes in (2, 3):
        grid = torch.stack([numbers, *[torch.full((5,), 0.3)] * (axes - 1)], -1).reshape(1, *[1] * (axes - 1), 5, axes)
        x = torch.randn(1, 2, *(4, 5, 3)[:axes])
        x.view(-1)[0] = torch.inf
        model = from_torch(Calls(lambda x, g: F.grid_sample(x, g, align_corners=False)), (x, grid), fallback="error")
        torch.testing.assert_close(model(x, grid), F.grid_sample(x, grid, align_corners=False), equal_nan=True)


def test_grids_of_sizes_that_vary_are_sampled() -> None:
    module = Calls(lambda x, g: F.grid_sample(x, g, "bilinear", "border", align_corners=True)).eval()
    inputs = torch.randn(2, 9, 5, 6), torch.rand(2, 4, 7, 2)
    batch, height, places = (torch.export.Dim(name) for name in ("batch", "height", "places"))
    model = from_torch(module, inputs, dynamic=[({0: batch, 2: height}, {0: batch, 1: places})], fallback="error")
    compiled = vm.compile(model)
    for sizes in ((1, 1, 1), (3, 8, 2)):
        x, grid = torch.randn(sizes[0], 9, sizes[1], 6), _grid(sizes[0], sizes[2], 7, 2).float()
        torch.testing.assert_close(compiled(x, grid), module(x, grid), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((2, 3, 5), (2, 1)),
        ((2, 3, 5), (-1, 2)),
        ((2, 3, 1), (2, 3)),
        ((3, 5, 4), (1, 2, 3, 0)),
        ((2, 3, 1, 4), (2, -1, 1, 3)),
        ((2, 2, 3, 4, 5), (1, 2, 0, 3, 2, -1)),
    ],
    ids=str,
)
def test_the_gradient_of_repeated_borders(shape: tuple[int, ...], padding: Sequence[int]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    adjoint = torch.randn_like(F.pad(x, padding, "replicate"))
    _agree(f"replication_pad{len(padding) // 2}d_backward", adjoint, x, padding)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, torch.inf])
def test_the_gradients_of_distances(p: float) -> None:
    x, y = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    y[:, 1], x[0, 1, 2] = x[:, 2], y[0, 3, 2]
    distances = aten._cdist_forward(x, y, p, None)
    _agree("_cdist_backward", torch.randn_like(distances), x, y, p, distances)
    for rows in (1, 4):
        of_pairs = aten._pdist_forward(y[0, :rows], p)
        _agree("_pdist_backward", torch.randn_like(of_pairs), y[0, :rows], p, of_pairs)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_labels_after_the_last_one_are_none(reduction: int) -> None:
    """torch's own table takes them for the class 0."""
    x = torch.randn(3, 5, dtype=torch.float64)
    labels = torch.tensor([[0, 2, -1, 1, 1], [3, -1, 0, 0, 0], [1, 2, 3, 4, 0]])
    _agree("multilabel_margin_loss_forward", x, labels, reduction)
    _agree("multilabel_margin_loss_forward", x[0], labels[0], reduction)
    module = Calls(lambda x: F.multilabel_margin_loss(x, labels, reduction=("none", "mean", "sum")[reduction]))
    model = from_torch(module, (x.float(),), fallback="error")
    torch.testing.assert_close(model(x.float()), module(x.float()))


def _list_arguments(operator: OpOverload) -> list[Any]:
    """Arguments that the operator's schema asks for, where its functions are all known: numbers between 0 and 1."""
    made = {
        "List[Tensor]": lambda: [torch.rand(2, 3, dtype=torch.float64), torch.rand(4, dtype=torch.float64)],
        "List[number]": lambda: [0.25, 2.0],
        "number": lambda: 0.5,
        "Tensor": lambda: torch.tensor(0.5, dtype=torch.float64),
    }
    return [made[str(one.type)]() for one in operator._schema.arguments if not one.has_default_value()]


@pytest.mark.parametrize("operator", FOREACH, ids=str)
def test_an_operator_of_lists_is_one_of_each_tensor(operator: OpOverload) -> None:
    arguments = _list_arguments(operator)
    for ours, theirs in zip(SPLITS[operator](*arguments), operator(*arguments), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_module_that_updates_lists_of_tensors_is_all_ours() -> None:
    class Updated(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            values = [x.clone(), y.exp()]
            torch._foreach_mul_(values, 0.5)
            torch._foreach_add_(values, [y, x], alpha=2)
            torch._foreach_lerp_(values, [x, y], 0.75)
            torch._foreach_clamp_min_(values, -1.0)
            return torch._foreach_addcdiv(values, [x, y], torch._foreach_sqrt([y.abs() + 1, x.abs() + 1]), value=0.1)

    inputs = torch.randn(3, 4), torch.randn(3, 4)
    model = from_torch(Updated(), inputs, fallback="error")
    for ours, theirs in zip(model(*inputs), Updated()(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
