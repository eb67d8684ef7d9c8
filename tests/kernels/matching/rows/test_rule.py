"""What of a function becomes one row kernel, and what is left outside."""

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
from autocast.kernels.matching.rows.rule import lower_rows
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import error, module, operators, random, run

op = relax.op


def _lowered(mod: tvm.IRModule) -> list[str]:
    return operators(lower_rows(compute_in_float32(canonicalize(mod)), backend_of(detect_target())))


def _calls(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    return _lowered(module(body, *arguments))


def test_scale_mask_and_casts_belong_to_the_softmax() -> None:
    def body(scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scaled = op.multiply(scores, relax.const(0.125, "float32"))
        return op.astype(op.nn.softmax(op.add(scaled, op.astype(mask, "float32"))), "bfloat16")

    calls = _calls(body, ((2, 3, 4, 40), "float32"), ((2, 1, 4, 40), "bfloat16"))
    assert calls == ["softmax0_2x3x4x40_bfloat16"]


def test_what_several_read_is_computed_once_in_the_same_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        shared = op.exp(x)
        return op.multiply(op.nn.softmax(shared), op.sqrt(shared))

    assert _calls(body, ((4, 40), "float32")) == ["softmax0_4x40_float32"]


def test_a_norm_written_out_is_one_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        centered = op.subtract(x, op.mean(x, axis=[-1], keepdims=True))
        variance = op.mean(op.multiply(centered, centered), axis=[-1], keepdims=True)
        return op.multiply(centered, op.rsqrt(op.add(variance, relax.const(1e-5, "float32"))))

    assert _calls(body, ((4, 40), "float32")) == ["mean0_4x40_float32"]


def test_values_of_rows_are_repeated_along_them() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        mean = op.mean(x, axis=[-1], keepdims=True)
        return relax.Tuple([op.broadcast_to(mean, (5, 40)), op.multiply(op.ones((5, 40), "float32"), mean)])

    mod = module(body, ((5, 40), "float32"))
    assert "mean0_5x40_float32" in " ".join(_lowered(mod))
    x = random((5, 40), "float32")
    for got in run(mod, x):
        assert error(got, np.broadcast_to(x.astype("float64").mean(1, keepdims=True), (5, 40))) < 1e-6


def test_the_gradients_of_softmax_and_of_a_norm_are_one_kernel_each() -> None:
    def body(y: relax.Expr, dy: relax.Expr, factor: relax.Expr) -> relax.Expr:
        weighted = op.multiply(dy, y)
        softmax = op.multiply(y, op.subtract(dy, op.sum(weighted, axis=[-1], keepdims=True)))
        norm = op.subtract(dy, op.add(op.mean(dy, axis=[-1], keepdims=True), op.mean(weighted, [-1], keepdims=True)))
        return relax.Tuple([softmax, op.multiply(norm, factor)])

    calls = _calls(body, ((4, 40), "float32"), ((4, 40), "float32"), ((4, 1), "float32"))
    assert calls == ["sum_mean0_4x40_float32"]


def test_a_path_through_a_product_divides_groups() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        first = op.nn.softmax(x)
        return op.nn.softmax(op.add(first, op.matmul(first, w)))

    calls = _calls(body, ((4, 40), "float32"), ((40, 40), "float32"))
    assert calls == ["softmax0_4x40_float32", "relax.matmul", "softmax1_4x40_float32"]


def test_bindings_between_those_of_a_group_move_out_of_its_way() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 40), "float32"), y: R.Tensor((40, 40), "float32")):
            with R.dataflow():
                a = R.nn.softmax(x)
                b = R.matmul(a, y)
                t = R.permute_dims(y)
                u = R.strided_slice(t, axes=[0], begin=[0], end=[4])
                c = R.multiply(a, u)
                R.output(a, b, c)
            return (a, b, c)

    assert _lowered(Module) == ["relax.permute_dims", "relax.strided_slice", "softmax0_4x40_float32", "relax.matmul"]
    x, y = random((4, 40), "float32"), random((40, 40), "float32", 1)
    a, b, c = run(Module, x, y)
    assert error(b, a.astype("float64") @ y.astype("float64")) < 1e-6 and error(c, a * y.T[:4].astype("float64")) < 1e-6


def test_values_of_rows_are_not_mistaken_for_vectors_along_them() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.multiply(x, op.exp(op.max(x, axis=-1)))

    calls = _calls(body, ((8, 8), "float32"))
    assert calls == ["max0_8x8_float32", "relax.multiply"]


def test_a_rounding_that_the_model_asks_for_is_done() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        exact = op.multiply(x, relax.const(3.0, "float32"))
        rounded = op.astype(op.astype(exact, "bfloat16"), "float32")
        return op.max(op.subtract(exact, rounded), axis=-1)

    x = random((4, 40), "float32")
    (got,) = run(module(body, ((4, 40), "float32")), x)
    exact = x * np.float32(3)
    np.testing.assert_array_equal(got, (exact - exact.astype("bfloat16").astype("float32")).max(-1))


def test_other_axes_are_declined_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    assert _calls(lambda x: op.nn.softmax(x, axis=0), ((4, 40), "float32")) == ["relax.nn.softmax"]
    assert "rows declines" in (message := capsys.readouterr().err) and "not over the last axis" in message


def test_one_long_row_is_left_to_kernels_that_divide_it() -> None:
    assert _calls(op.sum, ((300, 300), "float32")) == ["relax.sum"]
    assert _calls(op.sum, ((20, 20), "float32")) == ["sum0_20x20_float32"]


def test_the_extent_of_a_row_must_be_that_of_a_tensor() -> None:
    """The sum of ones of a size that only another tensor has: the kernel would have no way to know that size."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor((), "float32"):
            n = T.int64()
            with R.dataflow():
                ones = R.broadcast_to(R.const(1.0, "float32"), R.shape([n]))
                total = R.sum(ones)
                R.output(total)
            return total

    assert _lowered(Module) == ["relax.broadcast_to", "relax.sum"]
    (got,) = run(Module, np.zeros(7, "float32"))
    assert got == 7


@I.ir_module
class _Halved:
    """Rows of which there are as many as a convolution with a stride leaves."""

    @R.function
    def main(x: R.Tensor(("n", 1500), "float32"), w: R.Tensor((1500,), "float32")) -> R.Tuple(
        R.Tensor("float32", ndim=2), R.Tensor("float32", ndim=2), R.Tensor("float32", ndim=1)
    ):
        with R.dataflow():
            half = R.strided_slice(x, axes=[0], begin=[0], end=[10**6], strides=[2])
            soft = R.nn.softmax(half)
            norm = R.nn.layer_norm(half, w, w, axes=[-1], epsilon=1e-5)
            most = R.max(R.multiply(half, R.const(2.0, "float32")), axis=[-1])
            result = (soft, norm, most)
            R.output(result)
        return result


def test_rows_whose_number_is_computed_have_kernels_too() -> None:
    calls = _lowered(_Halved)
    assert [call.rpartition("_d")[0].rstrip("0123456789") for call in calls if "_d0x1500" in call] == [
        *("softmax", "layer_norm", "max")
    ]
    for count in (1, 6, 9):
        x, w = random((count, 1500), "float32"), random((1500,), "float32")
        half = x[::2].astype("float64")
        parts = np.exp(half - half.max(1, keepdims=True))
        norm = (half - half.mean(1, keepdims=True)) / np.sqrt(half.var(1, keepdims=True) + 1e-5) * w + w
        expected = (parts / parts.sum(1, keepdims=True), norm, 2 * half.max(1))
        for got, wanted in zip(run(_Halved, x, w), expected, strict=True):
            assert error(got, wanted) < 2e-6
