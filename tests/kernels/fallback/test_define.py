"""What TVM leaves to chance has the values that are stated, in processes that survive it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tests.kernels.modules import NUMPY, module, run

op = relax.op

_QUOTIENTS = {"divide": [0, 0, 3, -3, -3], "floor_divide": [0, 0, 3, -4, -4]}
_REMAINDERS = {"mod": [0, 0, 1, -1, 1], "floor_mod": [0, 0, 1, 1, -1]}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_over_zero_are_zero_and_the_smallest_over_minus_one_is_itself(dtype: str) -> None:
    smallest = np.iinfo(dtype).min
    x, y = np.array([5, -5, 7, -7, 7, smallest], dtype), np.array([0, 0, 2, 2, -2, -1], dtype)
    names = [*_QUOTIENTS, *_REMAINDERS]
    for times in (1, 16):  # 96 numbers are computed as vectors
        operands = np.tile(x, times), np.tile(y, times)
        mod = module(
            lambda a, b: relax.Tuple([getattr(op, name)(a, b) for name in names]),
            *[(each.shape, dtype) for each in operands],
        )
        for name, got in zip(names, run(mod, *operands), strict=True):
            expected = [*{**_QUOTIENTS, **_REMAINDERS}[name], smallest if name in _QUOTIENTS else 0]
            assert got.tolist() == expected * times, name


def test_unsigned_integers_over_zero_are_zero() -> None:
    x, y = np.array([5, 0, 255] * 16, "uint8"), np.array([0, 0, 255] * 16, "uint8")
    (got,) = run(module(op.floor_divide, (x.shape, "uint8"), (y.shape, "uint8")), x, y)
    assert got.tolist() == [0, 0, 1] * 16


SPECIAL = np.array([0.0, 1.0, -1.0, 2.5, -7.0, 1e-300, 1e300, np.inf, -np.inf, np.nan])
#: Of each dtype: what TVM makes of them goes by their values, not by how many bits they have.
NUMBERS = {
    "float64": (0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan),
    "float32": (0.0, -1.0, np.inf),
    "float16": (-0.0, 2.0, np.nan),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "mod"])
def test_numbers_that_are_known_count_as_others_do(name: str, dtype: str) -> None:
    """On either side, of vectors and of a scalar: as torch computes them."""
    build, function = getattr(op, name), {"mod": "fmod", "floor_mod": "remainder"}.get(name, name)
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.tile(SPECIAL, 4).astype(dtype))
    known = [relax.const(number, dtype) for number in NUMBERS[dtype]]

    def body(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return relax.Tuple([build(*pair) for k in known for pair in ((a, k), (k, a), (b, k), (k, b))])

    results = run(module(body, (tuple(x.shape), dtype), ((), dtype)), x.numpy(), x[7].numpy())
    compute, ones = getattr(torch, function), [torch.tensor(number, dtype=x.dtype) for number in NUMBERS[dtype]]
    pairs = [pair for one in ones for pair in ((x, one), (one.expand_as(x), x), (x[7], one), (one, x[7]))]
    for result, pair in zip(results, pairs, strict=True):
        got, expected = torch.from_numpy(np.array(result)), compute(*pair)
        torch.testing.assert_close(got, expected, equal_nan=True)
        if name in ("add", "subtract", "multiply"):  # 0 has a sign
            assert torch.equal(torch.signbit(got)[~got.isnan()], torch.signbit(expected)[~got.isnan()])


_BOUNDS = [(-3, 2), (3, 1), (1, 300), (-np.inf, 2), (-300, -3)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float64", "float32"])
def test_bounds_that_a_dtype_has_not_or_in_another_order(dtype: str) -> None:
    x = np.arange(-8, 8).astype(dtype)
    known = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
    results = run(module(lambda a: relax.Tuple([op.clip(a, *bounds) for bounds in _BOUNDS]), (x.shape, dtype)), x)
    for (low, high), got in zip(_BOUNDS, results, strict=True):
        expected = np.minimum(np.maximum(x.astype("float64"), low), high)
        clipped = np.clip(expected, known.min, known.max).astype(dtype)
        np.testing.assert_array_equal(got, clipped, err_msg=f"from {low} to {high}")


def test_signs_of_unsigned_integers() -> None:
    x = np.array([0, 1, 128, 255] * 8, "uint8")
    assert run(module(op.sign, (x.shape, "uint8")), x)[0].tolist() == [0, 1, 1, 1] * 8


@pytest.mark.parametrize("name", ["sinh", "cosh", "asinh", "atanh"])
def test_functions_that_the_processor_has_none_of_for_vectors(name: str) -> None:
    x = np.linspace(-0.9, 0.9, 64)
    (got,) = run(module(getattr(op, name), (x.shape, "float64")), x)
    torch.testing.assert_close(torch.from_numpy(got), getattr(torch, name)(torch.from_numpy(x)), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("number", [0.0, -0.0])
def test_what_kernels_compute_is_divided_by_zero(number: float) -> None:
    x, zero = np.random.default_rng(0).standard_normal((4, 4), "float32"), relax.const(number, "float32")
    bodies = (lambda a: op.matmul(a, a), op.sum, op.nn.softmax, lambda a: op.mean(a, -1), op.exp)
    divided = run(module(lambda a: relax.Tuple([op.divide(body(a), zero) for body in bodies]), (x.shape, "float32")), x)
    whole = run(module(lambda a: relax.Tuple([body(a) for body in bodies]), (x.shape, "float32")), x)
    with np.errstate(divide="ignore"):
        for got, computed in zip(divided, whole, strict=True):
            np.testing.assert_array_equal(got, computed / np.float32(number))


def test_the_negative_of_an_unsigned_integer_wraps_around() -> None:
    x = np.array([0, 1, 255], "uint8")
    assert run(module(op.negative, (x.shape, "uint8")), x)[0].tolist() == [0, 255, 1]


_EXTREMA: dict[str, Callable[..., relax.Expr]] = {
    "maximum": op.maximum,
    "minimum": op.minimum,
    "clip": lambda x, y: op.clip(x, -1.0, 1.0),
    "relu": lambda x, y: op.nn.relu(x),
}


@pytest.mark.parametrize("name", _EXTREMA)
def test_nan_passes_through_extrema_in_float64(name: str) -> None:
    x, y = np.array([np.nan, 0.5, np.nan]), np.array([0.0, np.nan, np.nan])
    (got,) = run(module(_EXTREMA[name], (x.shape, "float64"), (y.shape, "float64")), x, y)
    assert np.isnan(got).tolist() == [True, name in ("maximum", "minimum"), True]


def test_a_number_differs_from_itself_where_it_is_nan() -> None:
    x = np.array([np.nan, 0.5])
    body = lambda x: relax.Tuple([f(x, x) for f in (op.not_equal, op.equal, op.less_equal, op.greater_equal)])  # noqa: E731
    differs, *same = run(module(body, (x.shape, "float64")), x)
    assert differs.tolist() == [True, False] and [one.tolist() for one in same] == [[False, True]] * 3


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_what_int16_cannot_hold_is_the_same_at_every_size(dtype: str) -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, 40000.0, -1.5]).astype(NUMPY.get(dtype, dtype))
    arrays = [np.resize(numbers, size) for size in (1, 5, 64, 300)]
    mod = module(
        lambda *every: relax.Tuple([op.astype(x, "int16") for x in every]), *[(x.shape, dtype) for x in arrays]
    )
    expected = np.array([0, 0, 0, int(np.float64(numbers[3])) - 65536, -1], "int16")
    for got in run(mod, *arrays):
        np.testing.assert_array_equal(got, np.resize(expected, got.size))


_SIZES = [(1, 1), (1, 5), (4, 1), (1, 2), (4, 5)]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "run-time"])
@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_images_resized_to_one_pixel_with_aligned_corners(method: str, symbolic: bool) -> None:
    def resized(x: relax.Expr, like: relax.Expr) -> relax.Expr:
        return op.image.resize2d(
            x,
            relax.ShapeExpr(like.ty.shape.values),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode="align_corners",
            cubic_alpha=-0.75,
        )

    x = np.random.default_rng(0).standard_normal((2, 3, 6, 7), "float32")
    shapes = [(f"h{i}", f"w{i}") if symbolic else size for i, size in enumerate(_SIZES)]
    mod = module(
        lambda x, *likes: relax.Tuple([resized(x, like) for like in likes]),
        *[(shape, "float32") for shape in (x.shape, *shapes)],
    )
    mode = {"linear": "bilinear", "cubic": "bicubic"}[method]
    for size, got in zip(_SIZES, run(mod, x, *[np.zeros(size, "float32") for size in _SIZES]), strict=True):
        expected = torch.nn.functional.interpolate(torch.from_numpy(x), size, mode=mode, align_corners=True)
        np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=str(size))


@pytest.mark.parametrize(("mode", "place"), [("align_corners", 0), ("tf_crop_and_resize", 1)])
def test_volumes_resized_to_one_pixel(mode: str, place: int) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        box = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
        return op.image.resize3d(x, (1, 3, 1), box, "NCDHW", method="linear", coordinate_transformation_mode=mode)

    x = np.random.default_rng(0).standard_normal((1, 2, 3, 3, 3), "float32")
    (got,) = run(module(body, (x.shape, "float32")), x)
    np.testing.assert_allclose(got, x[:, :, place : place + 1, :, place : place + 1], atol=1e-6)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")  # torch's, of what it did before
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_a_grid_of_one_pixel_with_aligned_corners_is_the_middle(size: tuple[int, int]) -> None:
    theta = np.random.default_rng(0).standard_normal((2, 2, 3)).astype("float32")
    (got,) = run(module(lambda x: op.image.affine_grid(x, size, True), (theta.shape, "float32")), theta)
    expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), [2, 1, *size], align_corners=True)
    np.testing.assert_allclose(got, expected.permute(0, 3, 1, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pad", [None, True])
def test_truth_values_are_moved_to_another_layout(pad: bool | None) -> None:
    x = np.array([[True, False, True, True, False]])
    padding = None if pad is None else tvm.tirx.IntImm("bool", pad)
    mod = module(lambda v: op.layout_transform(v, lambda i, j: (i, j // 3, j % 3), padding), (x.shape, "bool"))
    (got,) = run(mod, x)
    assert got.shape == (1, 2, 3)
    assert got.reshape(-1)[:5].tolist() == x[0].tolist()
    assert pad is None or got[0, 1, 2]
