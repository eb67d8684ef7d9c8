"""Sums of very many numbers, wherever one runs, are as exact as short ones: errors do not grow with their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from tvm import relax

from tests.kernels.modules import EPSILON, module, run

op, functional = relax.op, torch.nn.functional

#: A sum of blocks is off by some roundings of the sum of its terms' magnitudes, here all of one sign.
_ROUNDINGS = 24


class Case(NamedTuple):
    """An operator of numbers around 100, or of what `data` makes of normally distributed ones, and torch's."""

    shapes: tuple[tuple[int, ...], ...]
    body: Callable[..., relax.Expr]
    reference: Callable[..., torch.Tensor]
    data: Callable[[np.ndarray], np.ndarray] = lambda x: x + 100


def _ones_around(x: np.ndarray) -> np.ndarray:
    return 1 + 1e-6 * x


def _log_softmax(x: relax.Expr) -> relax.Expr:
    return op.nn.log_softmax(x, -1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return ((q @ k.mT / 100).softmax(-1) @ v).transpose(1, 2)


def _scores(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    return op.nn.attention(q, k, v, scale=0.01)


def _low(x: np.ndarray) -> np.ndarray:
    return (x + 4).astype(ml_dtypes.bfloat16)


def _low_product(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return op.matmul(op.astype(a, "bfloat16"), op.astype(b, "bfloat16"), "float32")


_LONG = 1 << 20
_IMAGE = (1, 3, 512, 512)
CASES = {
    "sum of a row": Case(((1, _LONG),), lambda x: op.sum(x, [1]), lambda x: x.sum(1)),
    "sum of a vector": Case(((_LONG,),), lambda x: op.sum(x), lambda x: x.sum()),
    "sum of a column": Case(((_LONG, 1),), lambda x: op.sum(x, [0]), lambda x: x.sum(0)),
    "sums of long rows": Case(((5, 200_003),), lambda x: op.sum(x, [1]), lambda x: x.sum(1)),
    "sums of columns": Case(((100_003, 5),), lambda x: op.sum(x, [0]), lambda x: x.sum(0)),
    "mean of everything": Case(((2, 3, 100_003),), lambda x: op.mean(x), lambda x: x.mean()),
    "cumulative sum": Case(((2, 100_003),), lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1)),
    "cumulative sum of columns": Case(((100_003, 2),), lambda x: op.cumsum(x, 0), lambda x: x.cumsum(0)),
    "cumulative product": Case(((100_003,),), lambda x: op.cumprod(x, 0), lambda x: x.cumprod(0), _ones_around),
    "softmax of a row": Case(((1, _LONG),), lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1)),
    "softmax of a vector": Case(((_LONG,),), lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1)),
    "softmax of single elements": Case(((_LONG, 1),), lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1)),
    "log_softmax of a row": Case(((1, _LONG),), _log_softmax, lambda x: x.log_softmax(-1), lambda x: x),
    "global average": Case((_IMAGE,), lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)), lambda x: x.mean((2, 3), True)),
    "average of whole images": Case(
        (_IMAGE,), lambda x: op.nn.avg_pool2d(x, (512, 512)), lambda x: x.mean((2, 3), True)
    ),
    "average of large windows": Case(
        ((1, 300, 301, 3),),
        lambda x: op.nn.avg_pool2d(x, (200, 70), (100, 70), layout="NHWC"),
        lambda x: functional.avg_pool2d(x.permute(0, 3, 1, 2), (200, 70), (100, 70)).permute(0, 2, 3, 1),
    ),
    "adaptive average of large windows": Case(
        ((1, 300, 301, 3),),
        lambda x: op.nn.adaptive_avg_pool2d(x, (2, 3), layout="NHWC"),
        lambda x: functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (2, 3)).permute(0, 2, 3, 1),
    ),
    "average of a volume": Case(
        ((1, 2, 30, 40, 50),),
        lambda x: op.nn.adaptive_avg_pool3d(x, (1, 1, 1)),
        lambda x: functional.adaptive_avg_pool3d(x, 1),
    ),
    "product of two vectors": Case(((_LONG,),) * 2, op.matmul, torch.matmul),
    "sum of products": Case(
        ((3, 1 << 16), (2, 1 << 16)),
        lambda x, y: op.einsum((x, y), "ik,jk->ji"),
        lambda x, y: torch.einsum("ik,jk->ji", x, y),
    ),
    "product of few rows": Case(((3, 1 << 16), (1 << 16, 5)), op.matmul, torch.matmul),
    "product of many rows": Case(((33, 1 << 16), (1 << 16, 17)), op.matmul, torch.matmul),
    "product of bfloat16": Case(((33, 1 << 18), (1 << 18, 17)), _low_product, torch.matmul, _low),
    "product with a transposed matrix": Case(
        ((33, 1 << 16), (17, 1 << 16)), lambda a, b: op.matmul(a, op.permute_dims(b)), lambda a, b: a @ b.T
    ),
    "convolution of many channels": Case(((1, 1024, 9, 9), (16, 1024, 5, 5)), op.nn.conv2d, functional.conv2d),
    "convolution with a long kernel": Case(((1, 2, 50_000), (3, 2, 50_000)), op.nn.conv1d, functional.conv1d),
    "attention over many keys": Case(((1, 33, 1, 8), (1, 30_000, 1, 8), (1, 30_000, 1, 8)), _scores, _attention),
    "attention of one query": Case(((1, 1, 1, 8), (1, 30_000, 1, 8), (1, 30_000, 1, 8)), _scores, _attention),
    "mean square": Case(
        ((_LONG,),) * 2, lambda x, y: op.mean(op.square(op.add(x, y))), lambda x, y: (x + y).square().mean()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_of_a_sum_does_not_grow_with_its_length(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [case.data(rng.standard_normal(shape)).astype("float32") for shape in case.shapes]
    (got,) = run(module(case.body, *[(shape, "float32") for shape in case.shapes]), *arrays)
    exact = case.reference(*[torch.from_numpy(array).double() for array in arrays]).numpy()
    off = np.abs(got - exact) / np.abs(exact)
    assert off.max() <= _ROUNDINGS * EPSILON["float32"], off.max()


@pytest.mark.parametrize("shape", [(2, 200_003), (1, 1 << 20), (1000, 400)])
def test_a_normalization_is_as_exact_as_its_data_however_long_its_rows_are(shape: tuple[int, int]) -> None:
    """Numbers around 1000 are known to half a unit in their last place, and so their distance from the mean is.

    The mean itself is off by as many roundings as a lane's chain of sums has, twice as many with 8 lanes as with 16.
    """
    x = (np.random.default_rng(0).standard_normal(shape) + 1000).astype("float32")
    ones = np.ones(shape[-1:], "float32")
    (got,) = run(
        module(lambda x, g, b: op.nn.layer_norm(x, g, b, -1), (shape, "float32"), *[(shape[-1:], "float32")] * 2),
        *(x, ones, 0 * ones),
    )
    exact = functional.layer_norm(torch.from_numpy(x).double(), shape[-1:])
    assert np.abs(got - exact.numpy()).max() < 1000 * EPSILON["float32"] * 3


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(1 << 19, 2), (2, 5, 200, 301)])
def test_a_loss_of_very_many_labels(shape: tuple[int, ...], reduction: str) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(shape).astype("float32")).log_softmax(1)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    mod = module(lambda x, y: op.nn.nll_loss(x, y, reduction=reduction), (shape, "float32"), (labels.shape, "int64"))
    (got,) = run(mod, x.numpy(), labels)
    exact = float(functional.nll_loss(x.double(), torch.from_numpy(labels), reduction=reduction))
    assert abs(float(got) - exact) <= _ROUNDINGS * EPSILON["float32"] * exact
