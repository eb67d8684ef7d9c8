"""Row operators against float64: every one of them, for rows of many lengths, with and without neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from tests.kernels.modules import EPSILON, error, module, random, run

op = relax.op


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _normalized(x: np.ndarray, *axes: int) -> np.ndarray:
    centered = x - x.mean(axes, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axes, keepdims=True) + 1e-5)


#: Of the rows of `x` (three dimensions) and of two vectors along its last: in Relax, and in numpy.
_FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "softmax": (lambda x, g, b: op.nn.softmax(x), lambda x, g, b: _softmax(x)),
    "softmax between functions": (
        lambda x, g, b: op.nn.relu(op.multiply(op.nn.softmax(op.tanh(x)), relax.const(2.0, str(x.ty.dtype)))),
        lambda x, g, b: 2 * _softmax(np.tanh(x)),
    ),
    "log_softmax": (lambda x, g, b: op.nn.log_softmax(x), lambda x, g, b: np.log(_softmax(x))),
    "layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), lambda x, g, b: _normalized(x, -1) * g + b),
    "layer_norm alone": (
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], center=False, scale=False),
        lambda x, g, b: _normalized(x, -1),
    ),
    "rms_norm": (
        lambda x, g, b: op.nn.rms_norm(x, g, axes=[-1], epsilon=1e-5),
        lambda x, g, b: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
    ),
    "sum": (lambda x, g, b: op.sum(x, axis=-1), lambda x, g, b: x.sum(-1)),
    "sum of the last two": (lambda x, g, b: op.sum(op.add(x, g), axis=[1, 2]), lambda x, g, b: (x + g).sum((1, 2))),
    "mean of squares": (
        lambda x, g, b: op.mean(op.multiply(x, x), axis=[2], keepdims=True),
        lambda x, g, b: (x * x).mean(-1, keepdims=True),
    ),
    "max": (lambda x, g, b: op.max(x, axis=-1), lambda x, g, b: x.max(-1)),
    "min": (lambda x, g, b: op.min(x, axis=-1), lambda x, g, b: x.min(-1)),
    "variance": (lambda x, g, b: op.variance(x, axis=-1), lambda x, g, b: x.var(-1)),
    "std": (lambda x, g, b: op.std(x, axis=-1, keepdims=True), lambda x, g, b: x.std(-1, keepdims=True)),
    "argmax": (lambda x, g, b: op.argmax(x, axis=-1), lambda x, g, b: x.argmax(-1)),
    "argmin": (lambda x, g, b: op.argmin(x, axis=-1, keepdims=True), lambda x, g, b: x.argmin(-1)[..., None]),
    "cumsum": (lambda x, g, b: op.cumsum(x, axis=-1), lambda x, g, b: x.cumsum(-1)),
    "cumsum of cumsum": (
        lambda x, g, b: op.add(op.cumsum(x, axis=-1), op.cumsum(op.cumsum(x, axis=-1), axis=-1)),
        lambda x, g, b: x.cumsum(-1) + x.cumsum(-1).cumsum(-1),
    ),
    "cumsum of a softmax of cumsum": (
        lambda x, g, b: op.cumsum(op.nn.softmax(op.cumsum(x, axis=-1)), axis=-1),
        lambda x, g, b: _softmax(x.cumsum(-1)).cumsum(-1),
    ),
}


#: Rows of one vector and less, with a tail, of whole vectors, of blocks, of a length that varies.
_DIMS = [(3, 2, 2), (1, 5, 17), (2, 3, 64), ("a", "b", 163), (2, 2, 600), ("a", 3, "n")]
#: Those are loaded and stored in another way, and that is all.
_BFLOAT16 = [(3, 2, 2), (1, 5, 17), ("a", "b", 163), (2, 2, 600), ("a", 3, "n")]
_FLOAT16 = [("a", "b", 163)]


@pytest.mark.parametrize(
    ("dims", "dtype"),
    [
        *((dims, "float32") for dims in _DIMS),
        *((dims, "bfloat16") for dims in _BFLOAT16),
        *((dims, "float16") for dims in _FLOAT16),
    ],
    ids=str,
)
def test_row_functions_match_float64(dims: tuple, dtype: str) -> None:
    sizes = [dim if isinstance(dim, int) else {"a": 4, "b": 2, "n": 200}[dim] for dim in dims]
    arrays = [random(shape, dtype, seed, scale=2.0) for seed, shape in enumerate((sizes, sizes[-1:], sizes[-1:]))]

    def body(*tensors: relax.Expr) -> relax.Expr:
        return relax.Tuple([build(*tensors) for build, _ in _FUNCTIONS.values()])

    results = run(module(body, (dims, dtype), (dims[-1:], dtype), (dims[-1:], dtype)), *arrays)
    for (name, (_, reference)), got in zip(_FUNCTIONS.items(), results, strict=True):
        expected = reference(*[array.astype("float64") for array in arrays])
        assert got.shape == expected.shape and str(got.dtype) == ("int64" if name.startswith("arg") else dtype)
        # Float32 rounds each of `sizes[-1]` additions, of which the vectors make far fewer in sequence.
        assert error(got, expected) < 2 * max(EPSILON[dtype], 5e-7), name


def test_the_product_of_a_row_matches_float64() -> None:
    x = random((3, 50), "float32", scale=0.2) + np.float32(1)
    (got,) = run(module(lambda x: op.prod(x, axis=-1), ((3, 50), "float32")), x)
    np.testing.assert_allclose(got, x.astype("float64").prod(-1), rtol=50 * EPSILON["float32"])


@pytest.mark.parametrize("spatial", [(5, 5), (16,), (1, 40)], ids=str)
def test_norms_of_channels_match_float64(spatial: tuple[int, ...]) -> None:
    shape, axes = (2, 6, *spatial), [*range(2, 2 + len(spatial))]
    x, gamma, beta = random(shape, "float32", 0), random((6,), "float32", 1), random((6,), "float32", 2)

    def body(x: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
        grouped = op.nn.relu(op.nn.group_norm(x, gamma, beta, 3, 1, axes))
        return relax.Tuple([grouped, op.astype(op.nn.instance_norm(x, gamma, beta, 1, axes), "bfloat16")])

    got = run(module(body, (shape, "float32"), ((6,), "float32"), ((6,), "float32")), x, gamma, beta)
    wide, along = x.astype("float64"), (6, *[1] * len(spatial))
    scale, offset = gamma.reshape(along), beta.reshape(along)
    grouped = _normalized(wide.reshape(2, 3, -1), -1).reshape(shape) * scale + offset
    assert error(got[0], np.maximum(grouped, 0)) < 1e-6
    assert error(got[1], _normalized(wide, *axes) * scale + offset) < 2 * EPSILON["bfloat16"]


def test_norms_over_several_axes_match_float64() -> None:
    shapes = [(3, 4, 18), (4, 18), (4, 18)]
    arrays = [random(shape, "float32", seed) for seed, shape in enumerate(shapes)]
    mod = module(lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-2, -1]), *[(shape, "float32") for shape in shapes])
    wide = [array.astype("float64") for array in arrays]
    assert error(run(mod, *arrays)[0], _normalized(wide[0], 1, 2) * wide[1] + wide[2]) < 1e-6


@pytest.mark.parametrize("columns", [7, 300])
def test_infinities_and_nan_are_those_of_the_formula(columns: int) -> None:
    x = random((5, columns), "float32")
    x[0, 3:] = -np.inf  # what a mask leaves
    x[1] = -np.inf
    x[2, 1] = np.inf
    x[3, 4] = np.nan

    def body(x: relax.Expr) -> relax.Expr:
        return relax.Tuple([op.nn.softmax(x), op.max(x, axis=-1), op.argmax(x, axis=-1), op.min(x, axis=-1)])

    softmax, largest, place, smallest = run(module(body, ((5, columns), "float32")), x)
    assert error(softmax[[0, 4]], _softmax(x[[0, 4]].astype("float64"))) < 1e-6 and (softmax[0, 3:] == 0).all()
    assert np.isnan(softmax[[1, 2, 3]]).any(-1).all() and np.isnan(softmax[[1, 3]]).all()
    np.testing.assert_array_equal(largest, x.max(-1))
    np.testing.assert_array_equal(smallest, x.min(-1))
    np.testing.assert_array_equal(place, x.argmax(-1))


def test_where_masks_scores_and_a_row_of_them_gives_nan() -> None:
    def body(scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
        return op.nn.softmax(op.where(mask, scores, relax.const(-np.inf, "float32")))

    scores, mask = random((2, 3, 20), "float32"), np.random.default_rng(0).random((2, 1, 20)) < 0.5
    mask[1] = False
    (got,) = run(module(body, ((2, 3, 20), "float32"), ((2, 1, 20), "bool")), scores, mask)
    with np.errstate(invalid="ignore"):
        expected = _softmax(np.where(mask, scores.astype("float64"), -np.inf))
    assert error(got[0], expected[0]) < 1e-6 and np.isnan(got[1]).all()


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64"])
def test_other_instruction_sets_give_the_same_numbers(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random((3, 4, 77), "bfloat16")

    def body(x: relax.Expr) -> relax.Expr:
        return relax.Tuple([op.nn.softmax(op.nn.gelu(x)), op.variance(x, axis=-1), op.cumsum(x, axis=-1)])

    mod = module(body, ((3, 4, 77), "bfloat16"))
    expected = run(mod, x)
    monkeypatch.setenv("AUTOCAST_TARGET", cpu)
    for got, want in zip(run(mod, x), expected, strict=True):
        assert error(got, want.astype("float64")) < EPSILON["bfloat16"]
