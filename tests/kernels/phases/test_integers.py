"""Products of integers by kernels of floating-point numbers: which, in how many parts, and that no sum is rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import autocast
from autocast import vm
from autocast.ir import dtype_of, is_op, relax_functions
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.integers import multiply_integers
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import module, operators, run

op = relax.op


def wide(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "int32")


def steps(x: relax.Expr, zero: relax.Expr) -> relax.Expr:
    return op.subtract(wide(x), wide(zero))


def extremes(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """The smallest and the largest numbers: their sums are as large as any."""
    bounds = np.iinfo(dtype)
    return np.random.default_rng(seed).choice([bounds.min, bounds.max], shape, p=[0.1, 0.9]).astype(dtype)


def test_a_product_of_few_terms_is_one_product_that_stays_in_float32() -> None:
    def body(x: relax.Expr, w: relax.Expr, scale: relax.Expr) -> relax.Expr:
        return op.multiply(op.astype(op.matmul(wide(x), wide(w), out_dtype="int32"), "float32"), scale)

    mod = module(body, ((5, 500), "uint8"), ((500, 3), "int8"), ((), "float32"))
    rewritten = canonicalize(multiply_integers(mod, ("bfloat16", "float32")))
    others = [name for name in operators(rewritten) if name != "relax.astype"]
    assert others == ["relax.matmul", "relax.round", "relax.multiply"]
    values = [binding.value for binding in rewritten["main"].body.blocks[0].bindings]
    (product,) = (value for value in values if is_op(value, "relax.matmul"))
    assert [dtype_of(x) for x in (*product.args, product)] == ["bfloat16", "bfloat16", "float32"]


def conv(groups: int = 1, **options: object) -> Callable[..., relax.Expr]:
    return lambda x, w: op.nn.conv2d(wide(x), wide(w), groups=groups, out_dtype="int32", **options)


#: A product, the operands' shapes and dtypes, and of how many parts its sums are.
PARTS: dict[str, tuple[Callable[..., relax.Expr], tuple, tuple, int]] = {
    "bytes": (lambda x, w: op.matmul(wide(x), wide(w)), ((4, 512), "uint8"), ((512, 3), "int8"), 1),
    "more bytes": (lambda x, w: op.matmul(wide(x), wide(w)), ((4, 515), "uint8"), ((515, 3), "int8"), 2),
    "differences": (
        lambda x, w: op.matmul(steps(x, op.flip(x, 0)), steps(w, op.flip(w, 1))),
        ((2, 3, 600), "uint8"),
        ((600, 4), "uint8"),
        3,
    ),
    "rows of a vector": (lambda x, w: op.matmul(wide(x), wide(w)), ((700,), "uint8"), ((700, 4), "uint8"), 3),
    "truth values": (lambda x, w: op.matmul(wide(x), wide(w)), ((3, 5000), "bool"), ((5000, 2), "int8"), 1),
    "windows": (conv(padding=1), ((2, 60, 6, 5), "uint8"), ((7, 60, 3, 3), "int8"), 2),
    "windows of groups": (conv(2, strides=2), ((2, 130, 5, 7), "uint8"), ((6, 65, 3, 3), "int8"), 2),
    "windows of each channel": (conv(8), ((1, 8, 9, 9), "uint8"), ((8, 1, 3, 3), "int8"), 1),
}


@pytest.mark.parametrize("case", PARTS)
def test_sums_are_exact_in_so_many_parts(case: str) -> None:
    body, (x_shape, x_dtype), (w_shape, w_dtype), parts = PARTS[case]
    mod = module(body, (x_shape, x_dtype), (w_shape, w_dtype))
    rewritten = operators(multiply_integers(mod, ("bfloat16", "float32")))
    assert sum(name in ("relax.matmul", "relax.nn.conv2d") for name in rewritten) == parts
    x, w = (
        np.ones(shape, "bool") if dtype == "bool" else extremes(shape, dtype, seed)
        for seed, (shape, dtype) in enumerate([(x_shape, x_dtype), (w_shape, w_dtype)])
    )
    (result,) = run(mod, x, w)
    assert result.dtype == "int32"
    np.testing.assert_array_equal(result, expected(case, x, w))


def expected(case: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """By int64, and by torch's convolution in float64, which is exact."""
    x, w = x.astype("int64"), w.astype("int64")
    if case == "differences":
        return (x - x[::-1]) @ (w - w[:, ::-1])
    if not case.startswith("windows"):
        return x @ w
    strides, padding, groups = {
        "windows": (1, 1, 1),
        "windows of groups": (2, 0, 2),
        "windows of each channel": (1, 0, 8),
    }[case]
    data, weights = (torch.from_numpy(each.astype("float64")) for each in (x, w))
    return torch.nn.functional.conv2d(data, weights, None, strides, padding, 1, groups).numpy().astype("int64")


@given(
    st.integers(1, 9),
    st.integers(1, 1200),
    st.integers(1, 40),
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from(["int8", "uint8"]),
)
@settings(max_examples=5, deadline=None)
def test_products_of_any_size_are_exact(rows: int, depth: int, columns: int, left: str, right: str) -> None:
    mod = module(
        lambda x, w: op.matmul(wide(x), wide(w), out_dtype="int32"), (("n", depth), left), ((depth, columns), right)
    )
    x, w = extremes((rows, depth), left, rows), extremes((depth, columns), right, depth)
    np.testing.assert_array_equal(run(mod, x, w)[0], x.astype("int64") @ w.astype("int64"))


@pytest.mark.parametrize("kind", ["matmul", "conv2d"])
def test_scales_of_channels_stay_out_of_factors_that_have_to_be_exact(kind: str) -> None:
    """Folded into the weight they would be rounded with it."""

    def body(x: relax.Expr, w: relax.Expr, scales: relax.Expr) -> relax.Expr:
        if kind == "matmul":
            return op.multiply(op.astype(op.matmul(wide(x), wide(w)), "float32"), scales)
        sums = op.nn.conv2d(wide(x), wide(w), padding=1, out_dtype="int32")
        return op.multiply(op.astype(sums, "float32"), op.reshape(scales, [1, 8, 1, 1]))

    x_shape, w_shape = ((6, 40), (40, 8)) if kind == "matmul" else ((1, 16, 6, 6), (8, 16, 3, 3))
    mod = module(body, (x_shape, "uint8"), (w_shape, "int8"), ((8,), "float32"))
    generator = np.random.default_rng(0)
    x, w = extremes(x_shape, "uint8", 0), generator.integers(-128, 128, w_shape).astype("int8")
    scales = generator.random(8, "float32") + 0.1
    model = autocast.from_relax(mod, {"x1": w, "x2": scales})
    data, weights = x.astype("int64"), w.astype("int64")
    if kind == "matmul":
        exact = (data @ weights).astype("float32") * scales
    else:
        windows = torch.nn.functional.conv2d(
            torch.from_numpy(data).double(), torch.from_numpy(weights).double(), padding=1
        )
        exact = windows.numpy().astype("float32") * scales.reshape(1, 8, 1, 1)
    np.testing.assert_array_equal(vm.compile(model)(x), exact)


@pytest.mark.parametrize("dtypes", [["float32"], ["float64"]])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_sums_that_their_dtype_does_not_hold_wrap_around(dtype: str, dtypes: list[str]) -> None:
    for depth in (300, 1500):  # one part, and several
        mod = module(
            lambda x, w: op.astype(op.matmul(x, w, out_dtype=dtype), "float32"),
            *(((3, depth), "int8"), ((depth, 4), "int8")),
        )
        x, w = (np.full(shape, -128, "int8") for shape in ((3, depth), (depth, 4)))
        x[1], w[:, 1] = extremes((depth,), "int8", 0), extremes((depth,), "int8", 1)
        exact = (x.astype("int64") @ w.astype("int64")).astype(dtype).astype("float32")
        np.testing.assert_array_equal(run_plainly(multiply_integers(mod, dtypes), x, w), exact)


#: Where sums may be inexact, or it is not known how long they are.
LEFT: dict[str, tuple[Callable[..., relax.Expr], tuple, tuple]] = {
    "numbers of 32 bits": (lambda x, w: op.matmul(x, w), ((4, 8), "int32"), ((8, 3), "int32")),
    "of 16 bits": (lambda x, w: op.matmul(wide(x), wide(w)), ((4, 8), "int16"), ((8, 3), "int16")),
    "any number of terms": (lambda x, w: op.matmul(wide(x), wide(w)), ((4, "n"), "int8"), (("n", 3), "int8")),
    "windows of many taps": (conv(), ((1, 2, 30, 30), "uint8"), ((2, 2, 23, 23), "int8")),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_may_be_inexact_stays_as_it_is(case: str) -> None:
    body, *arguments = LEFT[case]
    mod = module(body, *arguments)
    tvm.ir.assert_structural_equal(multiply_integers(mod, ("bfloat16", "float32")), mod)


def test_in_float64_nothing_is_cut_and_any_number_of_terms_is_exact() -> None:
    mod = module(*[LEFT["any number of terms"][0], *LEFT["any number of terms"][1:]])
    rewritten = multiply_integers(mod, ["float64"])
    dtypes = [
        str(binding.var.ty.dtype)
        for _, function in relax_functions(rewritten)
        for binding in function.body.blocks[0].bindings
        if is_op(binding.value, "relax.matmul")
    ]
    assert dtypes == ["float64"]
