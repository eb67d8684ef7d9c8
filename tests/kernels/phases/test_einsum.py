"""Sums of products as products of matrices: every arrangement of indices, and what is left as it is."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels.phases.canonicalize import canonicalize
from tests.kernels.modules import EPSILON, NUMPY, Shape, error, module, operators, random, run

op = relax.op

#: Sizes of the indices; those of the batch and of what is summed have no size in common with others.
_SIZES = {"a": 2, "b": 3, "i": 5, "j": 4, "k": 7, "m": 6, "s": 1}


def _module(subscripts: str, dtype: str, dynamic: str = "") -> tvm.IRModule:
    inputs = subscripts.replace(" ", "").partition("->")[0].split(",")
    shapes: list[Shape] = [[index if index in dynamic else _SIZES[index] for index in own] for own in inputs]
    return module(lambda x, y: op.einsum((x, y), subscripts), *[(shape, dtype) for shape in shapes])


def _arrays(subscripts: str, dtype: str) -> list[np.ndarray]:
    inputs = subscripts.replace(" ", "").partition("->")[0].split(",")
    return [random([_SIZES[index] for index in own], dtype, seed) for seed, own in enumerate(inputs)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "subscripts",
    [
        "ik,kj->ij",
        "ki,jk->ji",
        "aik,akj->aij",
        "iakb,bkj->jbai",
        "ik, k->i",
        "k,k->",
        "kim,mkj->ij",
        "ikm,kj->ij",
        "isk,skj->jsi",
    ],
)
def test_a_sum_of_products_is_a_product_of_matrices(subscripts: str, dtype: str) -> None:
    mod = _module(subscripts, dtype)
    names = operators(canonicalize(mod))
    assert ("relax.matmul" in names or "relax.sum" in names) and "relax.einsum" not in names
    arrays = _arrays(subscripts, dtype)
    exact = np.einsum(subscripts.replace(" ", ""), *[array.astype("float64") for array in arrays])
    (got,) = run(mod, *arrays)
    assert got.shape == exact.shape and got.dtype == NUMPY.get(dtype, np.dtype(dtype))
    assert error(got, exact) < 8 * EPSILON[dtype]


def test_sizes_may_be_known_at_run_time_only() -> None:
    (got,) = run(_module("aik,akj->aij", "float32", dynamic="ak"), *(arrays := _arrays("aik,akj->aij", "float32")))
    assert error(got, np.einsum("aik,akj->aij", *[array.astype("float64") for array in arrays])) < 1e-6


@pytest.mark.parametrize("subscripts", ["ik,jk->ijk", "i,j->ij", "ii,ij->j"])
def test_what_is_no_product_of_matrices_stays(subscripts: str) -> None:
    sizes = {"ii,ij->j": [(5, 5), (5, 4)]}.get(
        subscripts, [tuple(_SIZES[i] for i in own) for own in subscripts.split("->")[0].split(",")]
    )
    mod = module(lambda x, y: op.einsum((x, y), subscripts), *[(shape, "float32") for shape in sizes])
    assert operators(canonicalize(mod)) == ["relax.einsum"]
