"""Transpositions of products are products of transpositions."""

from __future__ import annotations

import pytest
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.products.rule import lower_products
from autocast.kernels.matching.products.transposed import transpose_products
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def _gradient(x: relax.Expr, adjoint: relax.Expr) -> relax.Expr:
    """The gradient of the weight of a linear layer, as the forward's transposition leaves it."""
    return op.permute_dims(op.matmul(op.permute_dims(x), adjoint, out_dtype="float32"))


@pytest.mark.parametrize("rows", [16, "n"])
def test_the_gradient_of_a_weight_is_one_product(rows: int | str) -> None:
    mod = module(_gradient, ((rows, 8), "bfloat16"), ((rows, 6), "bfloat16"))
    (call,) = operators(lower_products(transpose_products(mod), backend_of(detect_target())))
    assert "6x8x" in call and "_tn_bf16_bf16_f32" in call


def test_a_product_that_others_read_stays_as_it_is() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        product = op.matmul(x, w)
        return op.add(product, op.permute_dims(product))

    mod = transpose_products(module(body, ((8, 4), "float32"), ((4, 8), "float32")))
    calls = operators(lower_products(mod, backend_of(detect_target())))
    assert calls[0] == "product0_8x8x4_nn_f32_f32_f32" and "relax.permute_dims" in calls


def test_operands_that_were_not_transposed_are_read_the_other_way() -> None:
    mod = module(lambda x, w: op.permute_dims(op.matmul(x, w)), ((7, 33), "float32"), ((33, 19), "float32"))
    assert operators(lower_products(transpose_products(mod), backend_of(detect_target()))) == [
        "product0_19x7x33_tt_f32_f32_f32"
    ]
    x, w = random((7, 33), "float32"), random((33, 19), "float32", 1)
    (got,) = run(mod, x, w)
    assert error(got, (x.astype("float64") @ w).T) < 8 * EPSILON["float32"]


def test_the_gradient_matches_float64() -> None:
    mod = module(_gradient, ((65, 37), "bfloat16"), ((65, 19), "bfloat16"))
    x, adjoint = random((65, 37), "bfloat16"), random((65, 19), "bfloat16", 1)
    (got,) = run(mod, x, adjoint)
    assert error(got, adjoint.astype("float64").T @ x.astype("float64")) < 2 * EPSILON["bfloat16"] * 65**-0.5
