"""Which operators become one kernel, what it stores, and that the whole gives the numbers of float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.kernels import detect_target
from autocast.kernels.matching.elementwise.rule import lower_elementwise
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run, scheduled

op = relax.op


def lowered(body: Callable[..., relax.Expr], *arguments: tuple) -> tvm.IRModule:
    return lower_elementwise(compute_in_float32(module(body, *arguments)), backend_of(detect_target()))


def test_a_chain_with_casts_and_broadcasts_is_one_kernel() -> None:
    def body(x: relax.Expr, bias: relax.Expr, mask: relax.Expr) -> relax.Expr:
        kept = op.where(mask, op.tanh(op.add(x, bias)), relax.const(0.0, "bfloat16"))
        return op.astype(op.multiply(kept, x), "float32")

    mod = lowered(body, ((4, "n", 8), "bfloat16"), ((8,), "bfloat16"), (("n", 1), "bool"))
    assert operators(mod) == ["elementwise_add_tanh_where_multiply_4xd0x8_float32"]


def test_what_others_read_is_stored_by_the_same_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        shared = op.exp(x)
        return relax.Tuple([op.permute_dims(shared), op.sqrt(shared)])

    mod = lowered(body, ((4, 40), "float32"))
    assert operators(mod) == ["elementwise_exp_sqrt_4x40_float32", "relax.permute_dims"]


def test_kernels_are_made_before_and_after_a_match_cast() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 40), "float32"), places: R.Tensor(("m",), "int64")):
            k = T.int64()
            with R.dataflow():
                first = R.exp(R.sinh(x))
                found = R.nonzero(places)
                known = R.match_cast(found, R.Tensor((1, k), "int64"))
                other = R.sinh(first)
                ones = R.ones(R.shape([k]), "float32")
                last = R.multiply(R.sqrt(R.exp(other)), x)
                R.output(last, ones, known)
            return (last, ones, known)

    names = operators(lower_elementwise(compute_in_float32(Before), backend_of(detect_target())))
    assert names[0] == "elementwise_sinh_exp_4x40_float32"
    assert "elementwise_sinh_exp_sqrt_multiply_4x40_float32" in names
    x, places = np.full((4, 40), 0.5, "float32"), np.array([0, 3, 4])
    last, ones, known = run(Before, x, places)
    np.testing.assert_allclose(last, np.exp(np.sinh(np.exp(np.sinh(x)))) ** 0.5 * x, rtol=1e-5)
    assert (ones.tolist(), known.tolist()) == ([1, 1], [[1, 2]])


def test_a_group_does_not_reach_around_what_depends_on_it() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        first = op.exp(x)
        return op.add(first, op.nn.softmax(first))

    assert operators(lowered(body, ((4, 40), "float32"))) == [
        "elementwise_exp_4x40_float32",
        "relax.nn.softmax",
        "elementwise_add_4x40_float32",
    ]


def test_what_reads_the_same_low_tensor_is_computed_where_it_is_needed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.multiply(op.nn.softmax(op.exp(x)), op.sqrt(x))

    first, *_, last = operators(lowered(body, ((4, 40), "bfloat16")))
    assert first.startswith("elementwise_exp_4x40") and "sqrt" in last


def test_equal_groups_share_a_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.exp(op.nn.softmax(op.exp(x)))

    mod = lowered(body, ((4, 40), "float32"))
    assert len(scheduled(mod)) == 1


def test_views_and_broadcasts_before_a_group_are_read_where_they_come_from() -> None:
    def body(x: relax.Expr, vector: relax.Expr) -> relax.Expr:
        repeated = op.broadcast_to(op.reshape(op.astype(vector, "float32"), (1, 8, 1)), (4, 8, 6))
        return op.add(x, repeated)

    mod = lowered(body, ((4, 8, 6), "float32"), ((8,), "int64"))
    assert operators(mod) == ["elementwise_add_4x8x6_float32"]


@pytest.mark.parametrize(
    ("body", "dtype", "reason"),
    [
        (lambda x: op.add(x, x), "int64", "it computes in int64"),
        (lambda x: op.nn.prelu(x, relax.const([0.5], "float32")), "float32", "no function of vectors computes it"),
        (lambda x: op.astype(x, "int32"), "int64", "float32 cannot hold every int64"),
    ],
)
def test_the_rest_is_declined_with_the_reason(
    body: Callable, dtype: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    (name,) = operators(lowered(body, ((4, 40), dtype)))
    assert name.startswith("relax.")
    assert f": {reason}" in capsys.readouterr().err


_BODIES: dict[str, tuple[Callable, Callable]] = {
    "shared and rounded": (
        lambda x: op.multiply(op.exp(x), op.add(op.exp(x), op.sigmoid(x))),
        lambda x: np.exp(x) * (np.exp(x) + 1 / (1 + np.exp(-x))),
    ),
    "rows and columns": (
        lambda x: op.divide(op.subtract(x, op.mean(x, 1, True)), op.add(op.max(op.abs(x), 0), op.max(op.abs(x)))),
        lambda x: (x - x.mean(1, keepdims=True)) / (np.abs(x).max(0) + np.abs(x).max()),
    ),
    "truth": (
        lambda x: op.astype(op.logical_and(op.greater(x, op.negative(x)), op.less(x, op.square(x))), "float32"),
        lambda x: ((x > -x) & (x < x * x)).astype("float64"),
    ),
    "clipped power": (
        lambda x: op.power(op.clip(x, -1, 1.5), relax.const(3.0, str(x.ty.dtype))),
        lambda x: np.clip(x, -1, 1.5) ** 3,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", _BODIES)
def test_results_match_float64(name: str, dtype: str) -> None:
    build, reference = _BODIES[name]
    x = random((34, 19), dtype)
    for shape in ((34, 19), ("n", "m")):
        (got,) = run(module(build, (shape, dtype)), x)
        assert error(got, reference(x.astype("float64"))) < 8 * max(EPSILON[dtype], 5e-7)


#: Numbers at and beyond the bounds of integers, and what has no whole part.
_BEYOND = (
    *(-25.5, 300.7, -1.0, -0.99, 127.9, 128.0, -128.5, -129.0, 255.9, 256.0, 65535.0, 65536.5, -32769.0, 1e6, -1e6),
    *(2.0**24 + 2, 2.0**30 + 128, -(2.0**30) - 64, 2.0**31, -(2.0**31), 3e9, -3e9, 1e30, np.inf, -np.inf, np.nan),
)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_integers_on_the_way_wrap_around_as_those_that_are_stored(dtype: str) -> None:
    """Those of few bits do, of what 32 bits hold; a number that no integer holds is the least one."""
    x = np.array(_BEYOND * 8, "float32")

    def through(x: relax.Expr) -> relax.Expr:
        return op.multiply(op.astype(op.astype(x, dtype), "float32"), relax.const(0.5))

    mod = module(through, (x.shape, "float32"))
    (kernel,) = operators(lower_elementwise(mod, backend_of(detect_target())))
    assert kernel.startswith("elementwise_trunc")
    wide = "int64" if dtype == "int64" else "int32"
    least = np.iinfo(wide).min
    with np.errstate(invalid="ignore"):
        held = np.abs(x) < -float(least)  # NaN is not
        whole = np.where(held, np.trunc(np.where(held, x, 0)), float(least)).astype(wide)
    (got,) = run(mod, x)
    np.testing.assert_array_equal(got, whole.astype(dtype).astype("float32") * 0.5)
