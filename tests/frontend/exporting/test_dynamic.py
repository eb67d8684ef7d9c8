"""The spellings of dynamic dimensions, and what is wrong with wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

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
        ({"n": {"x": 0}}, "has 0 for 'x'; expected a torch.export.Dim by axis there"),
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


class _Columns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of constants whose sizes vary: a number of a vector, and a column."""
        counts = torch.arange(3.0)[:, None].expand(3, x.shape[0])
        return x * x.new_ones(x.shape[0])[..., -1] + counts.select(-1, 1).sum()


def test_places_of_constants_whose_sizes_vary_are_known() -> None:
    run = runner(from_torch(_Columns(), (torch.randn(4),), dynamic={"n": ("x", 0)}))
    for size in (4, 7):
        x = torch.randn(size)
        assert_close(run(x), [x + 3])


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


@pytest.mark.parametrize("size", [(1, None), (None, 1), (None, None), (None, 3), (2, None)], ids=str)
def test_pooling_that_keeps_an_axis_takes_images_of_any_size(size: tuple[int | None, int | None]) -> None:
    module = nn.AdaptiveAvgPool2d(size)
    model = from_torch(
        module, (torch.randn(2, 3, 12, 15),), dynamic={"h": (0, 2, 5, 64), "w": (0, 3, 5, 64)}, fallback="error"
    )
    for height, width in ((12, 15), (7, 5), (5, 9)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(model(x), module(x))


class _Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        rows, volumes = x.flatten(1, 2), x[:, None]
        return (
            F.adaptive_max_pool2d(x, (2, 3)),
            F.adaptive_max_pool1d(rows, 5),
            F.adaptive_max_pool3d(volumes, (2, 4, 1)),
        )


def test_the_largest_of_windows_of_images_of_any_size() -> None:
    dynamic = {"h": ("x", 2), "w": ("x", 3)}
    model = from_torch(_Largest(), (torch.randn(2, 3, 12, 15),), dynamic=dynamic, fallback="error")
    for height, width in ((12, 15), (1, 5), (5, 2), (9, 17)):
        x = torch.randn(2, 3, height, width)
        x[0, 0], x[1, 0, 0, 0] = -float("inf"), float("nan")
        for got, expected in zip(model(x), _Largest()(x), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)


class _Nested(nn.Module):
    def forward(self, *parts: Any) -> torch.Tensor:
        return parts[0]["a"] * parts[1][0] + parts[1][1][0]


def test_inputs_in_lists_and_of_any_number_vary() -> None:
    x = torch.randn(4, 6)
    model = from_torch(_Nested(), ({"a": x}, [x, (x,)]), dynamic={"rows": ("*", 0, 1, 16)})
    for rows in (1, 3, 9):
        given = [torch.randn(rows, 6) for _ in range(3)]
        torch.testing.assert_close(model(*given), given[0] * given[1] + given[2])


class Nested(nn.Module):
    def forward(
        self, tables: dict[str, Any], y: torch.Tensor | None = None, *more: torch.Tensor, z: torch.Tensor | None = None
    ) -> torch.Tensor:
        total = tables["a"] + tables["b"][0] + sum(more)
        return total if z is None else total * z.sum()


def test_dimensions_of_nested_inputs_are_said_as_in_torch() -> None:
    batch, other = Dim("batch"), Dim("other")

    def inputs(rows: int, count: int) -> tuple[tuple[Any, ...], dict[str, torch.Tensor]]:
        tables = {"a": torch.randn(rows, 3), "b": [torch.randn(rows, 3), torch.randn(2)]}
        return (tables, torch.randn(2), torch.randn(rows, 3)), {"z": torch.randn(count)}

    args, kwargs = inputs(4, 5)
    tables = {"a": {0: batch}, "b": [(batch, None), None]}
    collection = torch.export.ShapesCollection()
    for tensor in (args[0]["a"], args[0]["b"][0], args[2]):
        collection[tensor] = {0: batch}
    collection[kwargs["z"]] = (other,)
    for dynamic in (
        {"tables": tables, "y": None, "more": ({0: batch},), "z": {0: other}},
        (tables, None, ({0: batch},), (other,)),
        collection,
    ):
        model = from_torch(Nested(), args, example_kwargs=kwargs, dynamic=dynamic)
        given, named = inputs(7, 1)
        tensors = [value for value in pytree.tree_leaves((given, named)) if value is not None]
        torch.testing.assert_close(model(*tensors), Nested()(*given, **named))
    with pytest.raises(ImportModelError, match=r"\['tables.b'\] has 1 parts: .*one for each of tables.b.0, tables.b.1"):
        from_torch(Nested(), args, example_kwargs=kwargs, dynamic={"tables": {"a": None, "b": [{0: batch}]}})
    with pytest.raises(ImportModelError, match=r"names the input 'tables.c', but the tensor inputs are: tables.a, "):
        from_torch(Nested(), args, example_kwargs=kwargs, dynamic={"tables": {"c": {0: batch}}})
