"""The spellings of dynamic dimensions, and what is wrong with wrong ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from autocast import compile
from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, assert_close, runner


class Pair(nn.Module):
    """Two inputs that share their first dimension; the second one is nested."""

    def forward(self, x: torch.Tensor, rest: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """(batch, length, 4), ((batch, 4),) to (batch, length, 4)."""
        (y,) = rest
        return (x + y[:, None]).cumsum(1) * x.shape[1] + torch.zeros(x.shape[0], 1, 4)


_EXAMPLE = (torch.randn(3, 5, 4), (torch.randn(3, 4),))
_BATCH = Dim("batch", min=1, max=16)


@pytest.mark.parametrize(
    "dynamic",
    [
        {"batch": [("x", 0, 1, 16), ("rest.0", 0)]},
        {"batch": [(0, 0, 1, 16), (1, 0)]},
        {"batch": ("*", 0, 1, 16)},
        {"x": {0: _BATCH}, "rest.0": {0: _BATCH}},
        {"x": (_BATCH, None, None), "rest.0": [_BATCH, None]},
    ],
    ids=["names", "positions", "every input", "torch", "torch's tuples"],
)
def test_each_spelling_names_the_symbolic_dimension_and_bounds_it(dynamic: dict[str, Any]) -> None:
    model = from_torch(Pair(), _EXAMPLE, dynamic=dynamic)
    assert [str(var.ty.shape.values[0]) for var in model.main.params] == ["batch", "batch"]
    assert dict(model.main.attrs["tir_var_upper_bound"]) == {"batch": 16}
    assert dict(model.main.attrs["tir_var_lower_bound"]) == {"batch": 1}


class Affine(nn.Module):
    """A multiple of one tensor, and another one."""

    def forward(self, x: torch.Tensor, scale: float, y: torch.Tensor) -> torch.Tensor:
        """(n, 4), (4) to (n, 4)."""
        return x * scale + y


def test_dimensions_may_be_in_the_order_of_the_inputs_as_in_torch() -> None:
    example = (torch.randn(3, 4), 2.0, torch.randn(4))
    model = from_torch(Affine(), example, dynamic=({0: _BATCH}, None, None))
    assert str(model.main.params[0].ty.shape.values[0]) == "batch"
    with pytest.raises(ImportModelError, match="a tuple of 2, and there are 3 inputs"):
        from_torch(Affine(), example, dynamic=({0: _BATCH}, None))
    with pytest.raises(ImportModelError, match="has 7 for the input 'y'"):
        from_torch(Affine(), example, dynamic=[{0: _BATCH}, None, 7])


def test_two_dynamic_dimensions_vary_freely() -> None:
    dynamic = {"batch": ("*", 0, 1, 16), "length": ("x", 1)}
    run = runner(from_torch(Pair(), _EXAMPLE, dynamic=dynamic))
    for batch, length in ((1, 7), (6, 2)):
        x, y = torch.randn(batch, length, 4), torch.randn(batch, 4)
        assert_close(run(x, y), (Pair()(x, (y,)),))


def test_a_tensor_is_repeated_as_often_as_a_size_says() -> None:
    module = Calls(
        lambda x, y: y.repeat(x.shape[0], 1, 2) + y.sum(-1, keepdim=True).repeat(x.shape[0], x.shape[1] // 3, 1)
    )
    y = torch.randn(2, 3, 5)
    run = runner(from_torch(module, (torch.randn(3, 3), y), dynamic={"batch": (0, 0)}, fallback="error"))
    for batch in (1, 7):
        x = torch.randn(batch, 3)
        assert_close(run(x, y), (module(x, y),))


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"batch": ("z", 0, 1, 16)}, r"'z', but the tensor inputs are: x, rest\.0"),
        ({"batch": ("x", 3)}, "axis 3 of 'x'.*rank 3; expected an axis from 0 to 2"),
        ({"batch": ("x", 0, 8, 4)}, "bounds 8 to 4; expected 0 <= minimum < maximum"),
        ({"batch": ("x", 0, 4, 16)}, "size 3 along axis 0, outside the bounds of 'batch': 4 to 16"),
        ({"batch": [("x", 0, 1, 4), ("rest.0", 0, 1, 5)]}, "several bounds"),
        ({"batch": "x"}, "is 'x'; expected dynamic="),
        ({"x": {0: 16}}, "expected an axis and a torch.export.Dim"),
        ({"batch": ("x", 0, 1, 16)}, "does not allow batch to vary freely: name every input"),
        ({"width": ("*", 1)}, "width"),
        (["batch"], "dynamic is a list"),
    ],
)
def test_a_wrong_specification_is_an_error_that_says_what_is_wrong(dynamic: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(Pair(), _EXAMPLE, dynamic=dynamic)


def test_inputs_after_a_star_are_dynamic_too() -> None:
    module = Calls(lambda x, y: x + y)
    run = runner(from_torch(module, (torch.ones(3, 2), torch.ones(3, 2)), dynamic={"rows": ("*", 0)}))
    assert_close(run(torch.ones(5, 2), torch.ones(5, 2)), (torch.full((5, 2), 2.0),))


@pytest.mark.parametrize("bounds", [(), (0, 8)], ids=["inferred", "given"])
def test_an_example_may_have_size_one_along_a_dynamic_axis(bounds: tuple[int, ...]) -> None:
    dynamic = {"batch": [("x", 0, *bounds), ("rest.0", 0)]}
    run = runner(from_torch(Pair(), (torch.randn(1, 5, 4), (torch.randn(1, 4),)), dynamic=dynamic))
    for batch in (1, 3):
        x, y = torch.randn(batch, 5, 4), torch.randn(batch, 4)
        assert_close(run(x, y), (Pair()(x, (y,)),))


@pytest.mark.parametrize("varying", [(0,), (1,), (0, 1)], ids=["the view", "another", "both"])
def test_an_example_may_be_a_view_of_a_larger_tensor(varying: tuple[int, ...]) -> None:
    module = Calls(lambda x, y: torch.cat([x.flatten(), y.flatten()]))
    large = torch.randn(3, 12)
    dynamic = {f"size{place}": (place, 1, 1, 64) for place in varying}
    run = runner(from_torch(module, (large[:, :7], large + 1), dynamic=dynamic))
    x, y = (torch.randn(3, 5 if place in varying else size) for place, size in enumerate((7, 12)))
    assert_close(run(x, y), (torch.cat([x.flatten(), y.flatten()]),))


class Positions(nn.Module):
    """Adds one of twelve positions to each row of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.randn(12, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, 3) to the same."""
        return x + self.positions[: x.shape[1]]


def test_bounds_that_are_left_out_are_those_of_the_module() -> None:
    model = from_torch(Positions(), (torch.randn(2, 5, 3),), dynamic={"length": ("x", 1)})
    assert dict(model.main.attrs["tir_var_upper_bound"]) == {"length": 12}
    assert dict(model.main.attrs["tir_var_lower_bound"]) == {"length": 1}


def test_dimensions_of_one_name_are_one_where_the_module_does_not_say_so() -> None:
    rows = {"rows": ("*", 0)}
    model = from_torch(Calls(lambda x, y: (x + 1, y - 1)), (torch.ones(3), torch.ones(3)), dynamic=rows)
    with pytest.raises(InputError, match="share a dimension"):
        compile(model)(torch.ones(4), torch.ones(5))


def test_two_names_for_what_has_to_be_one_dimension_are_refused() -> None:
    with pytest.raises(ImportModelError, match=r"a and b are the same size.*one name for both"):
        from_torch(Calls(lambda x, y: x + y), (torch.ones(3), torch.ones(3)), dynamic={"a": (0, 0), "b": (1, 0)})


class Pairs(nn.Module):
    """Sums of neighbouring rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(2 * n, 3) to (n, 3)."""
        return x.unflatten(0, (-1, 2)).sum(1)


def test_a_dimension_may_be_a_multiple_of_what_varies() -> None:
    model = from_torch(Pairs(), (torch.randn(6, 3),), dynamic={"x": {0: 2 * Dim("n", min=1, max=8)}})
    assert dict(model.main.attrs["tir_var_upper_bound"])["x_0"] == 16
    executable = compile(model)
    for rows in (2, 10, 16):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(executable(x), Pairs()(x))
    with pytest.raises(InputError, match=r"x is float32\[7, 3\], expected float32\[.* with x_0 = 7"):
        executable(torch.randn(7, 3))


def test_the_tensors_of_an_example_stay_as_they_are() -> None:
    x, y = torch.randn(3, 5, 4), torch.randn(3, 4, requires_grad=True)
    before = dict(x.__dict__)
    from_torch(Pair(), (x, (y,)), dynamic={"batch": ("*", 0)})
    assert x.__dict__ == before
    assert y.requires_grad


@pytest.mark.parametrize(
    ("decides", "why"),
    [
        (lambda x: x * 2 if x.shape[0] == 7 else x + 1, "for n = 7 this does not hold: .*!= 7"),
        (lambda x: x * 2 if x.shape[0] % 2 else x + 1, "for n = 3 this does not hold: .*% 2"),
    ],
    ids=["one size", "odd sizes"],
)
@pytest.mark.parametrize("row", [(0, 0), (0, 0, 1, 16)], ids=["inferred", "bounds"])
def test_a_module_that_is_another_for_other_sizes_is_refused(decides: Any, why: str, row: tuple[int, ...]) -> None:
    """Without bounds torch exports the branch of the example for all sizes, and says so in a condition."""
    with pytest.raises(ImportModelError, match=f"Calls decides by sizes: {why}"):
        from_torch(Calls(decides), (torch.ones(4, 3),), dynamic={"n": row})


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
    with pytest.raises(ImportModelError, match=r"decides by sizes \(.*test_dynamic.py:\d+\): for n = 1"):
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


def test_rows_are_halved_where_there_are_enough_left() -> None:
    """Ends are aligned by a quotient of sizes less one, which is none of one row."""
    halve = Calls(lambda x: nn.functional.interpolate(x, scale_factor=0.5, mode="linear", align_corners=True))
    model = from_torch(halve, (torch.randn(1, 2, 6),), dynamic={"n": (0, 2)})
    for size in (4, 9):
        x = torch.randn(1, 2, size)
        assert_close((model(x),), (halve(x),))
    with pytest.raises(InputError, match="expected n of 4 or more"):
        model(torch.randn(1, 2, 3))


def test_a_size_that_floating_point_numbers_round_otherwise_is_refused() -> None:
    """0.7 * 90 is 62.99999999999999."""
    with pytest.raises(ImportModelError, match="is computed with FloorToInt"):
        from_torch(Calls(lambda x: torch.zeros(math.floor(x.shape[0] * 0.7))), (torch.ones(9),), dynamic={"n": (0, 0)})


def test_an_axis_that_is_dropped_where_its_size_is_one_is_at_least_two() -> None:
    model = from_torch(Calls(lambda x: x.squeeze() * 2), (torch.randn(3, 4),), dynamic={"n": ("*", 0)})
    assert model(torch.randn(2, 4)).shape == (2, 4)
    with pytest.raises(InputError, match="expected n of 2 or more"):
        model(torch.randn(1, 4))
    with pytest.raises(ImportModelError, match=r"drops an axis \(squeeze\) where n is 1"):
        from_torch(Calls(lambda x: x.squeeze()), (torch.randn(3, 4),), dynamic={"n": ("*", 0, 1, 8)})


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
