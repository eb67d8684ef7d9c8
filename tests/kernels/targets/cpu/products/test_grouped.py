"""Products of groups of rows against float64, however many rows a group has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm

from autocast.kernels.specs.products import GroupedProduct
from autocast.kernels.targets.cpu.products.grouped import grouped_product
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

#: Where groups of 40 rows end: with none, one, few, many rows; with rows behind the last end; with ends that are wrong.
ENDS = {"all": (0, 1, 4, 30, 40), "left": (5, 5, 5, 6, 21), "wrong": (-3, 9, 50, 99, 99)}


def _groups(ends: tuple[int, ...], rows: int) -> list[tuple[int, int]]:
    places = [0, *(min(max(end, 0), rows) for end in ends)]
    return list(itertools.pairwise(places))


@pytest.mark.parametrize("cpu", [pytest.param(c, marks=pytest.mark.skipif(not runs_here(c), reason=c)) for c in CPUS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("known", "transposed", "n", "k"), [(40, True, 70, 33), (None, False, 200, 130)])
def test_every_group_is_multiplied_by_its_matrix(
    cpu: str, dtype: str, known: int | None, transposed: bool, n: int, k: int
) -> None:
    spec = GroupedProduct(known, n, k, 5, dtype, "int64", transposed)
    kernel = compile_kernels({"main": grouped_product(spec, target_of(cpu), "main")}, target_of(cpu))
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, k), "float32").astype(DTYPES[dtype])
    b = rng.standard_normal((5, k, n), "float32").astype(DTYPES[dtype])
    stored = np.ascontiguousarray(b.transpose(0, 2, 1)) if transposed else b
    for ends in ENDS.values():
        out = tvm.runtime.tensor(np.full((40, n), np.nan, "float32").astype(DTYPES[dtype]))
        kernel["main"](*map(tvm.runtime.tensor, (a, stored, np.array(ends, "int64"))), out)
        exact = np.zeros((40, n))
        for matrix, (start, end) in zip(b.astype("float64"), _groups(ends, 40), strict=True):
            exact[start:end] = a[start:end].astype("float64") @ matrix
        bound = np.abs(exact) * ROUNDING[dtype] + k * 2.0**-22
        assert (np.abs(out.numpy().astype("float64") - exact) <= bound).all()


def test_sums_of_many_terms_are_taken_in_blocks() -> None:
    spec = GroupedProduct(40, 17, 4000, 2)
    kernel = compile_kernels({"main": grouped_product(spec, target_of("x86-64"), "main")}, target_of("x86-64"))
    a, b = np.ones((40, 4000), "float32"), np.full((2, 4000, 17), 0.1, "float32")
    out = tvm.runtime.tensor(np.zeros((40, 17), "float32"))
    kernel["main"](*map(tvm.runtime.tensor, (a, b, np.array([1, 40], "int32"))), out)
    np.testing.assert_allclose(out.numpy(), 4000 * float(np.float32(0.1)), rtol=1e-5)
