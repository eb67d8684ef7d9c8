"""Lookups by numbers that come from data stay within their tensors: beyond an end they find the nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.kernels.modules import module, run

op = relax.op

_FAR = np.array([-(1 << 40), -5, -4, -1, 0, 3, 4, 1 << 40])
#: Those of four, counted from the end where they are negative.
_NEAREST = np.array([0, 0, 0, 3, 0, 3, 3, 3])
_TABLE = np.arange(20, dtype="float32").reshape(4, 5)


def _result(body: Callable[..., relax.Expr], *arrays: np.ndarray, shapes: Any = None) -> np.ndarray:
    shapes = shapes or [array.shape for array in arrays]
    arguments = [(shape, str(array.dtype)) for shape, array in zip(shapes, arrays, strict=True)]
    return run(module(body, *arguments), *arrays)[0]


@pytest.mark.parametrize("width", [1, 3, 64])
def test_take_that_promises_nothing(width: int) -> None:
    table = np.arange(4 * width, dtype="float32").reshape(4, width)
    got = _result(lambda x, i: op.take(x, i, 0, "fast"), table, _FAR)
    np.testing.assert_array_equal(got, table[np.clip(_FAR, 0, 3)])


@pytest.mark.parametrize("rows", [4, "n"])
def test_gather_elements(rows: int | str) -> None:
    places = np.repeat(_FAR[:, None], 5, axis=1)
    shapes = [(rows, 5), places.shape]
    got = _result(lambda x, i: op.gather_elements(x, i, axis=0), _TABLE, places, shapes=shapes)
    np.testing.assert_array_equal(got, _TABLE[_NEAREST])


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_take_of_as_many_squared_as_there_are(rows: int) -> None:
    """Whose count TVM knows to be 0 where there are no rows."""
    table, places = np.arange(rows, dtype="float32"), np.abs(np.arange(rows)[:, None] - np.arange(rows))
    got = _result(lambda x, i: op.take(x, i, 0, "wrap"), table, places, shapes=[("n",), ("n", "n")])
    np.testing.assert_array_equal(got, table[places])


def test_constant_places_in_a_tuple() -> None:
    places = relax.const(np.array([7, -1, 2]))
    got = _result(lambda x: op.index_tensor(x, relax.Tuple([places])), _TABLE)
    np.testing.assert_array_equal(got, _TABLE[[3, 3, 2]])


def test_places_in_small_integers_look_into_large_tensors() -> None:
    x, places = np.arange(1000, dtype="float32"), np.array([-1, 127], "int8")
    assert _result(lambda x, i: op.gather_elements(x, i, axis=0), x, places).tolist() == [999, 127]


def test_gather_nd() -> None:
    places = np.stack([_FAR, np.full(8, 7)], axis=-1)
    np.testing.assert_array_equal(_result(op.gather_nd, _TABLE, places), _TABLE[_NEAREST, 4])


def test_gather_nd_of_batches() -> None:
    got = _result(lambda x, i: op.gather_nd(x, i, batch_dims=1), _TABLE, np.array([[9], [-1], [-9], [2]]))
    np.testing.assert_array_equal(got, [4, 9, 10, 17])


def test_index_tensor() -> None:
    body = lambda x, i, j: op.index_tensor(x, [i, j])  # noqa: E731
    np.testing.assert_array_equal(_result(body, _TABLE, _FAR, np.full(8, -9)), _TABLE[_NEAREST, 0])


def test_index_tensor_of_one_index() -> None:
    np.testing.assert_array_equal(_result(lambda x, i: op.index_tensor(x, [i]), _TABLE, _FAR), _TABLE[_NEAREST])


def test_scatter_elements() -> None:
    updates = np.ones((8, 5), "float32")
    body = lambda x, i, u: op.scatter_elements(x, i, u, axis=0, reduction="add")  # noqa: E731
    got = _result(body, _TABLE, np.repeat(_FAR[:, None], 5, axis=1), updates)
    np.testing.assert_array_equal(got - _TABLE, np.bincount(_NEAREST, minlength=4)[:, None].repeat(5, axis=1))


_REDUCTIONS = {"update": None, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("shape", [(2, 3, 5, 2), (4, 3, 2, 2), (1, 2, 3, 1), (4, 3, 5, 2)])
def test_scatter_elements_of_a_part_of_the_tensor(shape: tuple[int, ...]) -> None:
    rng, axes = np.random.default_rng(0), (0, 1, 2, -1)
    x, updates = rng.standard_normal((4, 3, 5, 2)), rng.standard_normal(shape)
    rows = [rng.permutation(x.shape[axis])[: shape[axis]] for axis in axes]
    along = [row.reshape([-1 if i == axis % 4 else 1 for i in range(4)]) for row, axis in zip(rows, axes, strict=True)]
    places = [np.broadcast_to(row, shape).copy() for row in along]

    def body(x: relax.Expr, u: relax.Expr, *places: relax.Expr) -> relax.Expr:
        of_axes = zip(axes, places, strict=True)
        return relax.Tuple([op.scatter_elements(x, i, u, axis, how) for axis, i in of_axes for how in _REDUCTIONS])

    arrays = [x, updates, *places]
    results = iter(run(module(body, *[(array.shape, str(array.dtype)) for array in arrays]), *arrays))
    for axis, numbers in zip(axes, places, strict=True):
        for reduction, combine in _REDUCTIONS.items():
            expected = x.copy()
            for at in np.ndindex(*shape):
                to = tuple(numbers[at] if i == axis % 4 else number for i, number in enumerate(at))
                expected[to] = updates[at] if combine is None else combine(expected[to], updates[at])
            np.testing.assert_array_equal(next(results), expected, err_msg=f"{reduction} along {axis}")


def test_scatter_nd() -> None:
    places = np.stack([_FAR, np.full(8, 7)], axis=-1)
    got = _result(lambda x, i, u: op.scatter_nd(x, i, u, "add"), _TABLE, places, np.ones(8, "float32"))
    np.testing.assert_array_equal((got - _TABLE)[:, 4], np.bincount(_NEAREST, minlength=4))
    np.testing.assert_array_equal(got[:, :4], _TABLE[:, :4])


def test_index_put() -> None:
    body = lambda x, i, j, u: op.index_put(x, relax.Tuple([i, j]), u, accumulate=True)  # noqa: E731
    got = _result(body, _TABLE, _FAR, np.full(8, -9), np.ones(8, "float32"))
    np.testing.assert_array_equal((got - _TABLE)[:, 0], np.bincount(_NEAREST, minlength=4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_target_that_is_no_class_has_no_loss(reduction: str, dtype: str) -> None:
    predictions = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(dtype)
    targets = np.array([[0, -100, 3], [2, 1 << 40, -100]])
    got = _result(lambda p, t: op.nn.nll_loss(p, t, None, reduction, -100), predictions, targets)
    losses = np.zeros((2, 3))
    for place in [(0, 0), (0, 2), (1, 0)]:
        losses[place] = -predictions[place[0], targets[place], place[1]]
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / 4}[reduction]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(("target", "loss"), [(3, -4.0), (7, 0.0)])
def test_a_target_of_one_prediction(target: int, loss: float) -> None:
    body = lambda p, t: op.nn.nll_loss(p, t, None, "sum", -100)  # noqa: E731
    got = _result(body, np.arange(1, 5, dtype="float32"), np.array(target))
    np.testing.assert_array_equal(got, np.float32(loss))


def test_regions_of_images_that_there_are_not() -> None:
    images = np.arange(3, dtype="float32")[:, None, None, None].repeat(8, axis=2).repeat(8, axis=3)
    numbers = np.array([-1e9, -1, 1, 2, 3, 1e9, np.nan], "float32")
    regions = np.concatenate([numbers[:, None], np.tile(np.float32([1, 1, 6, 6]), (7, 1))], axis=1)
    got = _result(lambda x, r: op.vision.roi_align(x, r, (2, 2), 1.0), images, regions)
    assert got[:, 0, 0, 0].tolist() == [0, 0, 1, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [
        ([0, 0], [8, 9], [0, 1]),
        ([5, 1], [2, 9], [1, 0]),
        ([100, 0], [200, 9], [1, 2]),
        ([-3, -100], [100, -1], [1, 1]),
        ([7, 8], [-9, -10], [-1, -2]),
        ([2, 2], [5, 5], [-1, 1]),
    ],
)
def test_slices_that_only_the_call_knows(begin: list[int], end: list[int], step: list[int]) -> None:
    x = np.arange(72, dtype="float32").reshape(8, 9)
    got = _result(op.dynamic_strided_slice, x, *map(np.array, (begin, end, step)))
    rows, columns = (slice(b, e, s or 1) for b, e, s in zip(begin, end, step, strict=True))
    np.testing.assert_array_equal(got, x[rows, columns])
