"""Constant weights are packed apart from the product, once, and multiply as well as those packed at run time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.products.rule import lower_products
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.specs.products import Product
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run
from tests.kernels.targets.cpu.epilogues import epilogue
from tests.kernels.targets.cpu.products.cases import CPUS, Case, has_pairs, runs_here

op = relax.op
sizes = st.sampled_from([1, 2, 3, 15, 16, 17, 33, 47, 48, 49, 65, 97, 130])
here = next(cpu for cpu in CPUS if runs_here(cpu))


@pytest.mark.parametrize(
    "cpu",
    [pytest.param(cpu, marks=pytest.mark.skipif(not runs_here(cpu), reason="not of this machine")) for cpu in CPUS],
)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    m=st.one_of(sizes, st.none()),
    n=sizes,
    k=sizes,
    transpose=st.booleans(),
    compute=st.sampled_from(["float32", "bfloat16"]),
    activation=st.sampled_from([None, "gelu"]),
)
def test_any_packed_weight_equals_float64(
    cpu: str, m: int | None, n: int, k: int, transpose: bool, compute: str, activation: str | None
) -> None:
    spec = Product(
        m,
        n,
        k,
        transpose_b=transpose,
        epilogue=epilogue(bias="float32", activation=activation),
        compute=compute,
        b_packed=True,
    )
    Case(spec, cpu=cpu, m=19).check()


@pytest.mark.parametrize("rows", [1, 5, 6, 8, 9, 17, 32, 33])
@pytest.mark.parametrize(("dtype", "k"), [("float32", 1600), ("bfloat16", 1600), ("bfloat16", 1601)])
def test_a_packed_weight_multiplies_any_number_of_rows_while_more_of_it_is_fetched(
    rows: int, dtype: str, k: int
) -> None:
    added = epilogue(bias="float32", residual="float32")
    Case(Product(rows, 200, k, dtype, dtype, "float32", b_packed=True, epilogue=added), cpu=here).check()


@pytest.mark.parametrize(("rows", "m"), [(300, 300), (None, 1), (None, 45), (None, 300)])
@pytest.mark.parametrize("k", [3000, 3001])
def test_blocks_of_a_packed_weight_are_fetched_while_many_rows_are_multiplied(rows: int | None, m: int, k: int) -> None:
    finish = epilogue(bias="float32", activation="gelu")
    Case(
        Product(rows, 200, k, "bfloat16", "bfloat16", "float32", b_packed=True, epilogue=finish), cpu=here, m=m
    ).check()


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_weight_is_fetched_in_panels_of_any_width(cpu: str, dtype: str) -> None:
    Case(Product(8, 30, 4098, dtype, "float32", "float32", b_packed=True, compute=dtype), cpu=cpu).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_long_packed_weight_is_summed_block_by_block(dtype: str) -> None:
    Case(Product(19, 50, 4097, dtype, dtype, "float32", b_packed=True), cpu=here).check()


def _with_parameters(count: int, body: Callable[..., relax.Expr], *arguments: tuple) -> tvm.IRModule:
    """A module whose last `count` arguments are parameters, up to and including its products."""
    mod = canonicalize(module(body, *arguments))
    mod["main"] = mod["main"].with_attr("num_input", len(arguments) - count)
    return lower_products(compute_in_float32(mod), backend_of(detect_target()))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=has_pairs)])
def test_a_parameter_is_packed_before_its_product(dtype: str) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(x, op.permute_dims(w))

    mod = _with_parameters(1, body, ((3, 5, 65), dtype), ((70, 65), dtype))
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    assert operators(mod) == [f"pack0_70x65_{dtype}_{dtype}", f"product0_3x5x70x65_np_{short}_{short}_{short}"]
    x, w = random((3, 5, 65), dtype), random((70, 65), dtype, 1)
    mod["main"] = mod["main"].without_attr("num_input")
    assert error(run(mod, x, w)[0], x.astype("float64") @ w.astype("float64").T) < 2 * max(EPSILON[dtype], 1e-6)


def test_an_input_is_not_packed_apart() -> None:
    mod = _with_parameters(0, op.matmul, ((5, 65), "float32"), ((65, 70), "float32"))
    assert operators(mod) == ["product0_5x70x65_nn_f32_f32_f32"]


def test_equal_layers_share_a_packing_kernel() -> None:
    def body(x: relax.Expr, w: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.matmul(op.matmul(x, w), v)

    mod = _with_parameters(2, body, ((5, 64), "float32"), ((64, 64), "float32"), ((64, 64), "float32"))
    pack, product = "pack0_64x64_float32_float32", "product0_5x64x64_np_f32_f32_f32"
    assert operators(mod) == [pack, product, pack, product]


def _tied(dtype: str) -> list[str]:
    def body(ids: relax.Expr, w: relax.Expr) -> relax.Expr:
        hidden = op.take(w, ids, axis=0)
        return op.matmul(op.astype(hidden, dtype), op.permute_dims(op.astype(w, dtype)))

    return operators(_with_parameters(1, body, ((5,), "int64"), ((90, 64), "float32")))


def test_a_weight_that_is_also_an_embedding_exists_once() -> None:
    assert _tied("float32") == ["relax.take", "product0_5x90x64_nt_f32_f32_f32"]


@has_pairs
def test_a_weight_that_is_also_an_embedding_is_copied_where_the_copy_is_narrower() -> None:
    assert _tied("bfloat16")[1:] == [
        "relax.astype",
        "pack0_90x64_float32_bfloat16",
        "product0_5x90x64_np_bf16_f32_bf16",
    ]
