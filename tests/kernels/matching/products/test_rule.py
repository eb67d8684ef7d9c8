"""Which products become kernels, with what of their surroundings, and that the results are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr
from tvm import relax

from autocast import vm
from autocast.kernels import detect_target
from autocast.kernels.matching.products.rule import lower_products
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run, scheduled
from tests.kernels.targets.cpu.products.cases import CPUS, has_pairs, runs_here

op = relax.op


def _lowered(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    """What "main" calls once its products are kernels."""
    mod = compute_in_float32(canonicalize(module(body, *arguments)))
    return operators(lower_products(mod, backend_of(detect_target())))


def test_bias_activation_and_cast_are_the_kernels() -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        return op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), bias))

    calls = _lowered(body, ((2, 5, 8), "bfloat16"), ((6, 8), "bfloat16"), ((6,), "bfloat16"))
    assert calls == ["product0_2x5x6x8_nt_bf16_bf16_bf16_bias_gelu"]


def test_a_bias_may_come_first() -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        return op.add(bias, op.matmul(x, w))

    calls = _lowered(body, ((5, 8), "float32"), ((8, 6), "float32"), ((6,), "float32"))
    assert calls == ["product0_5x6x8_nn_f32_f32_f32_bias"]


def test_two_transpositions_of_one_factor_are_none() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(x, op.permute_dims(op.permute_dims(w)))

    mod = compute_in_float32(module(body, ((5, 8), "float32"), ((8, 6), "float32")))  # which `canonicalize` would join
    assert operators(lower_products(mod, backend_of(detect_target()))) == ["product0_5x6x8_nn_f32_f32_f32"]


def test_a_factor_with_channels_last_is_transposed_once_more() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        pooled = op.nn.max_pool1d(x, pool_size=[2], strides=[2])
        return op.nn.softmax(op.matmul(pooled, op.permute_dims(pooled, [0, 2, 1])))

    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("float32")
    pooled = x.reshape(2, 3, 3, 2).max(-1).astype("float64")
    scores = np.exp(pooled @ pooled.swapaxes(1, 2))  # square: the other way round it has the same shape
    got = vm.compile(module(body, (x.shape, "float32")))(x)
    np.testing.assert_allclose(got, scores / scores.sum(-1, keepdims=True), atol=1e-6)


@has_pairs
@pytest.mark.parametrize("cast_first", [True, False])
def test_a_weight_is_narrowed_while_it_is_packed(cast_first: bool) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        if cast_first:
            return op.matmul(x, op.permute_dims(op.astype(w, "bfloat16")))
        return op.matmul(x, op.astype(op.permute_dims(w), "bfloat16"))

    assert _lowered(body, ((5, 8), "bfloat16"), ((6, 8), "float32")) == ["product0_5x6x8_nt_bf16_f32_bf16"]


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_narrowed_weight_is_rounded_on_every_target(cpu: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(x, op.permute_dims(op.astype(w, "bfloat16")), out_dtype="float32")

    monkeypatch.setenv("AUTOCAST_TARGET", cpu)
    x, w = random((rows, 64), "bfloat16"), random((50, 64), "float32", 1)
    got = run(module(body, ((rows, 64), "bfloat16"), ((50, 64), "float32")), x, w)[0]
    assert error(got, x.astype("float64") @ w.astype(x.dtype).astype("float64").T) < 1e-6


def test_rows_that_nothing_multiplies_as_they_are_stored_are_widened_once_for_all_their_readers() -> None:
    def body(x: relax.Expr, *weights: relax.Expr) -> relax.Expr:
        return relax.Tuple([op.matmul(x, w) for w in weights])

    rows, wide, narrow = ((64, 512), "float16"), ((512, 4096), "float16"), ((512, 16), "float16")
    products = ["product0_64x4096x512_nn_f32_f16_f16", "product0_64x4096x512_nn_f32_f16_f16"]
    assert _lowered(body, rows, wide, wide) == ["relax.astype", *products]
    assert _lowered(body, rows, narrow) == ["product0_64x16x512_nn_f16_f16_f16"]  # packed, and widened, once
    assert _lowered(body, ((1, 512), "float16"), wide) == ["product0_1x4096x512_nn_f16_f16_f16"]
    x, w = random((64, 512), "float16"), random((512, 4096), "float16", 1)
    (got,) = run(module(op.matmul, rows, wide), x, w)
    assert error(got, x.astype("float64") @ w.astype("float64")) < EPSILON["float16"]


@has_pairs
def test_both_readers_of_a_narrowed_argument_narrow_it_as_they_pack() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        low = op.astype(w, "bfloat16")
        return op.add(op.matmul(x, low), op.matmul(op.permute_dims(x), low))

    calls = _lowered(body, ((8, 8), "bfloat16"), ((8, 8), "float32"))
    assert calls == ["product0_8x8x8_tn_bf16_f32_bf16", "product1_8x8x8_nn_bf16_f32_bf16_residual"]


def test_equal_products_share_a_kernel() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(op.matmul(x, w), w)

    mod = module(body, ((8, 8), "float32"), ((8, 8), "float32"))
    assert len(scheduled(lower_products(mod, backend_of(detect_target())))) == 1


SQUARE = ((8, 8), "float32")


@pytest.mark.parametrize(
    ("finish", "name"),
    [
        (
            lambda y, _: op.multiply(y, op.sigmoid(op.multiply(y, relax.const(1.7, "float32")))),
            "multiply_sigmoid_multiply",
        ),
        (lambda y, other: op.multiply(op.nn.silu(y), other), "silu_multiply"),
        (lambda y, other: op.add(op.multiply(other, relax.const(0.5, "float32")), op.tanh(y)), "multiply_tanh_add"),
        (lambda y, other: op.where(op.greater(y, other), y, op.negative(y)), "greater_negative_where"),
        (lambda y, other: op.subtract(other, op.multiply(y, y)), "multiply_subtract_unfused"),
    ],
)
def test_what_only_readers_of_a_product_read_is_the_kernels(finish: Callable[..., relax.Expr], name: str) -> None:
    def body(x: relax.Expr, w: relax.Expr, other: relax.Expr) -> relax.Expr:
        return finish(op.matmul(x, w), other)

    (call,) = _lowered(body, SQUARE, SQUARE, SQUARE)
    assert sorted(call.removeprefix("product0_8x8x8_nn_f32_f32_f32_").split("_")) == sorted(name.split("_"))
    x, w, other = (random((8, 8), "float32", seed) for seed in range(3))
    (got,) = run(module(body, SQUARE, SQUARE, SQUARE), x, w, other)
    (product,) = run(module(op.matmul, SQUARE, SQUARE), x, w)
    (expected,) = run(module(finish, SQUARE, SQUARE), product, other)
    assert error(got, expected.astype("float64")) < 1e-6


def test_a_result_that_is_returned_too_is_stored_before_its_activation() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        product = op.matmul(x, w)
        return relax.Tuple([op.nn.relu(product), product])

    assert _lowered(body, SQUARE, SQUARE) == ["product0_8x8x8_nn_f32_f32_f32", "relax.nn.relu"]


def test_a_product_is_stored_for_what_is_computed_from_all_of_it() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        product = op.matmul(x, w)
        return op.multiply(product, op.nn.softmax(product))

    assert _lowered(body, SQUARE, SQUARE) == ["product0_8x8x8_nn_f32_f32_f32", "relax.nn.softmax", "relax.multiply"]


def test_one_number_for_each_row_is_read_by_another_kernel() -> None:
    def body(x: relax.Expr, w: relax.Expr, rows: relax.Expr) -> relax.Expr:
        return op.multiply(op.nn.relu(op.matmul(x, w)), rows)

    calls = _lowered(body, ((5, 8), "float32"), ((8, 6), "float32"), ((5, 1), "float32"))
    assert calls == ["product0_5x6x8_nn_f32_f32_f32_relu", "relax.multiply"]


def test_a_vector_is_read_as_one_whatever_view_of_it_is_added() -> None:
    def body(x: relax.Expr, w: relax.Expr, scale: relax.Expr) -> relax.Expr:
        wide = op.broadcast_to(op.reshape(scale, (1, 6)), (5, 6))
        return op.multiply(op.matmul(x, w), wide)

    arguments = ((5, 8), "float32"), ((8, 6), "float32"), ((6,), "float32")
    calls = _lowered(body, *arguments)
    assert "product0_5x6x8_nn_f32_f32_f32_multiply" in calls and "relax.multiply" not in calls
    x, w, scale = (random(shape, dtype, seed) for seed, (shape, dtype) in enumerate(arguments))
    (got,) = run(module(body, *arguments), x, w, scale)
    assert error(got, (x.astype("float64") @ w) * scale) < 1e-6


def test_a_gate_that_is_a_product_too_is_stored_first() -> None:
    def body(x: relax.Expr, gate: relax.Expr, up: relax.Expr) -> relax.Expr:
        return op.multiply(op.nn.silu(op.matmul(x, gate)), op.matmul(x, up))

    calls = _lowered(body, SQUARE, SQUARE, SQUARE)
    assert calls == ["product0_8x8x8_nn_f32_f32_f32", "product1_8x8x8_nn_f32_f32_f32_silu_multiply"]


def test_of_a_sum_of_products_each_adds_itself_to_those_before_it() -> None:
    def body(x: relax.Expr, w: relax.Expr, momentum: relax.Expr) -> relax.Expr:
        return op.add(op.add(op.add(momentum, op.matmul(x, w)), op.matmul(w, x)), op.matmul(x, x))

    assert _lowered(body, SQUARE, SQUARE, SQUARE) == ["product0_8x8x8_nn_f32_f32_f32_residual"] * 3


def test_a_batch_of_one_needs_no_reshape() -> None:
    assert _lowered(op.matmul, ((1, 5, 8), "float32"), ((8, 6), "float32")) == ["product0_1x5x6x8_nn_f32_f32_f32"]


def test_the_product_of_two_vectors_is_a_sum() -> None:
    assert _lowered(op.matmul, ((8,), "float32"), ((8,), "float32")) == ["relax.multiply", "relax.sum"]


def test_a_product_of_integers_is_declined(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    assert _lowered(op.matmul, ((4, 8), "int32"), ((8, 4), "int32")) == ["relax.matmul"]
    assert "declines" in (messages := capsys.readouterr().err) and "int32" in messages


def test_a_bias_of_a_matrix_times_a_vector_is_the_kernels() -> None:
    def body(w: relax.Expr, x: relax.Expr, bias: relax.Expr) -> relax.Expr:
        return op.add(op.matmul(w, x), bias)

    calls = _lowered(body, ((6, 8), "float32"), ((8,), "float32"), ((6,), "float32"))
    assert calls == ["relax.reshape", "product0_1x6x8_nt_f32_f32_f32_bias", "relax.reshape"]


_GELU = {"gelu": lambda x: x * ndtr(x), "relu": lambda x: np.maximum(x, 0)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [7, "n"])
@pytest.mark.parametrize("residual_first", [True, False])
def test_bias_residual_and_activation_match_float64(dtype: str, rows: int | str, residual_first: bool) -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr, residual: relax.Expr) -> relax.Expr:
        sums = op.add(op.matmul(x, op.permute_dims(w)), bias)
        return op.nn.gelu(op.add(sums, residual)) if residual_first else op.add(residual, op.nn.relu(sums))

    shapes = [(3, rows, 37), (19, 37), (19,), (3, rows, 19)]
    mod = module(body, *[(shape, dtype) for shape in shapes])
    x, w, bias, residual = (
        random([7 if size == "n" else size for size in shape], dtype, seed, 0.3) for seed, shape in enumerate(shapes)
    )
    wide = [array.astype("float64") for array in (x, w, bias, residual)]
    sums = wide[0] @ wide[1].T + wide[2]
    expected = _GELU["gelu"](sums + wide[3]) if residual_first else wide[3] + _GELU["relu"](sums)
    (got,) = run(mod, x, w, bias, residual)
    assert str(got.dtype) == dtype and error(got, expected) < 2 * max(EPSILON[dtype], 1e-6)


@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 5, 9), (9, 6)),
        ((5, 9), (4, 9, 6)),
        ((2, 3, 5, 9), (2, 3, 9, 6)),
        ((2, 3, 5, 9), (2, 1, 9, 6)),
        ((2, 1, 5, 9), (3, 9, 6)),
        ((1, 5, 9), (1, 9, 6)),
        ((1, 5, 9), (4, 9, 6)),
        ((9,), (9, 6)),
        ((9,), (4, 9, 6)),
        ((5, 9), (9,)),
        ((4, 5, 9), (9,)),
    ],
)
def test_batches_of_every_kind_match_float64(shapes: tuple) -> None:
    left, right = (random(shape, "float32", seed) for seed, shape in enumerate(shapes))
    (got,) = run(module(op.matmul, *[(shape, "float32") for shape in shapes]), left, right)
    assert error(got, left.astype("float64") @ right.astype("float64")) < 1e-6


def test_heads_are_transposed_by_a_flag_and_only_moved_where_they_must() -> None:
    def body(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        return op.matmul(op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(k, [0, 2, 3, 1]))

    arguments = ((2, 5, 3, 8), "float32"), ((2, 6, 3, 8), "float32")
    calls = _lowered(body, *arguments)
    assert calls == ["relax.permute_dims", "relax.permute_dims", "product0_2x3x5x6x8_nt_f32_f32_f32"]
    q, k = (random(shape, dtype, seed) for seed, (shape, dtype) in enumerate(arguments))
    (got,) = run(module(body, *arguments), q, k)
    assert error(got, np.einsum("bshd,bthd->bhst", q.astype("float64"), k)) < 1e-6
