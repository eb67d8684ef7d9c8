"""Quantized numbers in float32: what is left of them, and that it is what integers would have given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast.ir import dims
from autocast.kernels.phases.integers import multiply_integers
from autocast.kernels.phases.quantized import quantized_in_float32
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import module, operators, run

op = relax.op

_INTEGERS = ("relax.quantize", "relax.dequantize")


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, dtype: str) -> np.ndarray:
    bounds = np.iinfo(dtype)
    return np.clip(np.rint(x / scale) + zero, bounds.min, bounds.max).astype(dtype)


def real(q: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return (q.astype("int64") - zero).astype("float32") * scale


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Some are halves of a step, some beyond all integers of a byte."""
    x = np.random.default_rng(seed).standard_normal(shape).astype("float32") * 4
    x.flat[:6] = 0.25, 0.75, -0.25, 900.0, -900.0, np.inf
    return x


#: The dtype of the integers, a scale and a zero for each of three columns or for all, and the axis.
PARAMETERS: dict[str, tuple[str, np.ndarray, np.ndarray, int]] = {
    "int8": ("int8", np.float32(0.5), np.int8(-3), -1),
    "uint8, from 0": ("uint8", np.float32(0.5), np.uint8(0), -1),
    "each column": ("int8", np.array([0.5, 0.25, 2], "float32"), np.array([1, 0, -7], "int8"), -1),
    "each row": ("uint8", np.array([0.5, 0.25, 2, 1], "float32"), np.array([1, 0, 255, 128], "uint8"), 0),
    "int16": ("int16", np.float32(0.01), np.int16(77), -1),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_pair_is_arithmetic_in_float32_that_gives_the_same(case: str) -> None:
    dtype, scale, zero, axis = PARAMETERS[case]

    def body(x: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.dequantize(op.quantize(x, s, z, axis, dtype), s, z, axis)

    mod = module(body, ((4, 3), "float32"), (scale.shape, "float32"), (zero.shape, dtype))
    rewritten = operators(quantized_in_float32(mod))
    assert "relax.round" in rewritten and not set(_INTEGERS) & set(rewritten)
    x = numbers(4, 3)
    along = [each.reshape(-1, 1) if axis == 0 else each for each in (scale, zero)]
    expected = real(quantized(x, *along, dtype), along[0], along[1].astype("int64"))
    np.testing.assert_array_equal(run(mod, x, scale, zero)[0], expected)


def test_integers_that_are_a_result_stay_integers() -> None:
    def body(x: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        q = relax.op.quantize(x, s, z, -1, "uint8")
        return relax.Tuple([q, op.dequantize(q, s, z, -1)])

    scale, zero, x = np.float32(0.5), np.uint8(9), numbers(5, 7)
    q, y = run(module(body, ((5, 7), "float32"), ((), "float32"), ((), "uint8")), x, scale, zero)
    np.testing.assert_array_equal(q, quantized(x, scale, zero, "uint8"))
    np.testing.assert_array_equal(y, real(q, scale, np.int64(9)))


def test_products_of_steps_read_no_integers() -> None:
    def steps(q: relax.Expr, zero: relax.Expr) -> relax.Expr:
        return op.subtract(op.astype(q, "int32"), op.astype(zero, "int32"))

    def body(x: relax.Expr, s: relax.Expr, z: relax.Expr, w: relax.Expr) -> relax.Expr:
        q = op.quantize(x, s, z, -1, "uint8")
        return op.matmul(steps(q, z), op.astype(w, "int32"), out_dtype="int32")

    mod = module(body, ((4, 9), "float32"), ((), "float32"), ((), "uint8"), ((9, 3), "int8"))
    rewritten = quantized_in_float32(multiply_integers(mod, ["float32"]))
    assert "relax.quantize" not in operators(rewritten)
    x, w = numbers(4, 9), np.random.default_rng(1).integers(-128, 128, (9, 3)).astype("int8")
    scale, zero = np.float32(0.5), np.uint8(100)
    expected = (quantized(x, scale, zero, "uint8").astype("int64") - 100) @ w.astype("int64")
    np.testing.assert_array_equal(run(mod, x, scale, zero, w)[0], expected)


def table(scale: tuple[int, ...]) -> tuple[Callable[..., relax.Expr], list]:
    def body(places: relax.Expr, rows: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.take(op.dequantize(rows, s, z, 0), places, 0)

    return body, [((2, 3), "int64"), ((50, 4), "uint8"), (scale, "float32"), (scale, "uint8")]


@pytest.mark.parametrize("scale", [(), (1,), (50,)])
def test_of_a_table_only_the_rows_that_are_taken_become_real_numbers(scale: tuple[int, ...]) -> None:
    body, arguments = table(scale)
    mod = module(body, *arguments)
    rewritten = quantized_in_float32(mod)
    wide = [
        binding.value for binding in rewritten["main"].body.blocks[0].bindings if "multiply" in str(binding.value.op)
    ]
    assert [dims(value) for value in wide] == [(50, 4) if scale == (50,) else (2, 3, 4)]
    generator = np.random.default_rng(0)
    places, rows = generator.integers(0, 50, (2, 3)), generator.integers(0, 256, (50, 4)).astype("uint8")
    s, z = generator.random(scale, "float32"), generator.integers(0, 256, scale).astype("uint8")
    s, z = np.asarray(s), np.asarray(z)
    each = (s.reshape(-1, 1), z.reshape(-1, 1).astype("int64"))
    np.testing.assert_array_equal(run(mod, places, rows, s, z)[0], real(rows, *each)[places])


def test_integers_of_32_bits_are_not_rounded_before_their_zero_is_subtracted() -> None:
    body = lambda q, s, z: op.dequantize(q, s, z, -1)  # noqa: E731
    mod = module(body, ((4,), "int32"), ((), "float32"), ((), "int32"))
    q, zero = np.array([2**30 + 1, 2**24 + 1, -(2**30) - 3, 0], "int32"), np.int32(2**24)
    np.testing.assert_array_equal(run(mod, q, np.float32(1), zero)[0], (q - zero).astype("float32"))


def _wide(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "int32")


#: Of integers of 8 bits: some wrap around, others cannot.
STEPS: tuple[Callable[[relax.Expr], relax.Expr], ...] = (
    _wide,
    lambda x: op.astype(x, "int8"),
    lambda x: op.astype(x, "uint8"),
    lambda x: op.add(x, x),
    lambda x: op.multiply(x, x),
    lambda x: op.subtract(x, op.flip(x, 0)),
    lambda x: op.permute_dims(x),
)


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4), st.sampled_from(["int8", "uint8"]))
@settings(max_examples=30, deadline=None)
def test_what_wraps_around_is_left_to_integers(steps: list, dtype: str) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        for step in steps:
            x = step(x)
        return op.astype(x, "float32")

    mod = module(body, ((6, 6), dtype))
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(bounds.min, bounds.max, (6, 6), dtype, endpoint=True)
    np.testing.assert_array_equal(run_plainly(quantized_in_float32(mod), x), run_plainly(mod, x))
