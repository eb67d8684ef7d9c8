"""What of their surroundings the kernels of reductions take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.ir import shape_of
from autocast.kernels import detect_target
from autocast.kernels.matching.reductions.rule import lower_reductions
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def _lowered(body: Callable[..., relax.Expr], *arguments: tuple) -> tvm.IRModule:
    return lower_reductions(compute_in_float32(module(body, *arguments)), backend_of(detect_target()))


def _run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(expand_operators(mod), target=detect_target()), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


#: The square of what the rounded mean is off by goes off a variance of two sweeps.
_CORRECTION = ["relax.negative", "relax.ewise_fma", "relax.maximum", "relax.reshape"]


_RULES: dict[str, tuple[Callable, Callable, tuple, list[str]]] = {
    "bias gradient": (
        lambda x: op.sum(x, [0, 1]),
        lambda x: x.sum((0, 1)),
        ((8, 16, 48), "bfloat16"),
        ["sum0_8x16x48_over_0_1_bfloat16"],
    ),
    "mean of squares": (
        lambda x: op.mean(op.multiply(x, x), [1], keepdims=True),
        lambda x: (x * x).mean(1, keepdims=True),
        ((8, "n", 48), "float32"),
        ["mean0_8xd0x48_over_1_float32"],
    ),
    "variance": (
        lambda x: op.variance(x, [0]),
        lambda x: x.var(0),
        ((300, 48), "float32"),
        ["variance0_300x48_over_0_float32"],
    ),
    "variance of unknown sizes": (
        lambda x: op.variance(x, [0]),
        lambda x: x.var(0),
        (("n", "m"), "float32"),
        ["variance0_d0xd1_over_0_float32"],
    ),
    "variance of what is computed": (
        lambda x: op.variance(op.exp(x), [0]),
        lambda x: np.exp(x).var(0),
        ((300, 48), "float32"),
        ["variance0_300x48_over_0_float32", "variance1_300x48_over_0_float32", *_CORRECTION],
    ),
    "deviation": (
        lambda x: op.std(x, [0, 2]),
        lambda x: x.std((0, 2)),
        ((30, 48, 7), "float32"),
        ["std0_30x48x7_over_0_2_float32", "std1_30x48x7_over_0_2_float32", *_CORRECTION, "relax.sqrt"],
    ),
    "product": (
        lambda x: op.prod(op.multiply(x, relax.const(0.1, "float32")), [0]),
        lambda x: (0.1 * x).prod(0),
        ((9, 48), "float32"),
        ["prod0_9x48_over_0_float32"],
    ),
    "collapsed": (
        lambda x: op.collapse_sum_to(x, (3, 1)),
        lambda x: x.sum((0, 2))[:, None],
        ((8, 3, 48), "float32"),
        ["collapse_sum_to0_8x3x48_over_0_2_float32"],
    ),
    "of integers": (lambda x: op.sum(x, [0]), lambda x: x.sum(0), ((8, 3), "int32"), ["relax.sum"]),
}


@pytest.mark.parametrize("name", _RULES)
def test_reductions_become_kernels(name: str) -> None:
    body, reference, (shape, dtype), expected = _RULES[name]
    mod = _lowered(body, (shape, dtype))
    assert operators(mod) == expected
    if dtype == "int32":
        return
    x = random([dim if isinstance(dim, int) else 19 for dim in shape], dtype)
    assert error(_run(mod, x), reference(x.astype("float64"))) < max(EPSILON[dtype], 1e-6)


def test_what_only_the_reduction_reads_belongs_to_it() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        shared = op.exp(x)
        return op.add(op.sum(op.multiply(op.add(shared, y), x), [0]), op.sum(shared, [0]))

    mod = _lowered(body, ((40, 6), "float32"), ((6,), "float32"))
    assert operators(mod) == ["relax.exp", "sum0_40x6_over_0_float32", "relax.add"]
    x, y = random((40, 6), "float32"), random((6,), "float32", 1)
    wide = np.exp(x.astype("float64"))
    assert error(_run(mod, x, y), ((wide + y) * x).sum(0) + wide.sum(0)) < 1e-6


def _run_all(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, target=detect_target()), tvm.cpu())
    return [result.numpy() for result in machine["main"](*[tvm.runtime.tensor(array) for array in arrays])]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((300, 48), "float32"), ((4, 19, 11, 70), "float32"), ((4, 56, 56, 3), "bfloat16"), ((2, "n", 33), "float32")],
)
def test_mean_and_variance_are_one_sweep(shape: tuple, dtype: str) -> None:
    """The data are far from 0: the squares of what is left of them beside the first line lose nothing."""
    axes = tuple(range(len(shape) - 1))
    mod = _lowered(lambda x: relax.Tuple([op.mean(x, axes), op.variance(x, axes)]), (shape, dtype))
    (name,) = operators(mod)
    assert name.startswith("mean_variance0_")
    x = random([dim if isinstance(dim, int) else 19 for dim in shape], "float32") * 3 + 100
    x = x.astype(random((1,), dtype).dtype)
    mean, variance = _run_all(mod, x)
    wide = x.astype("float64")
    assert error(mean, wide.mean(axes)) < 2 * EPSILON[dtype]
    assert error(variance, wide.var(axes)) < max(2 * EPSILON[dtype], 32 * EPSILON["float32"])


def test_a_constant_has_no_variance_and_nan_stays() -> None:
    mod = _lowered(lambda x: op.variance(x, [0]), ((300, 3), "float32"))
    x = np.full((300, 3), 0.1, "float32")
    x[7, 1], x[0, 2] = np.nan, np.nan
    np.testing.assert_array_equal(_run(mod, x), [0.0, np.nan, np.nan])


def test_sums_that_read_the_same_tensor_are_one_sweep() -> None:
    def body(g: relax.Expr, x: relax.Expr, mean: relax.Expr) -> relax.Expr:
        return relax.Tuple([op.sum(g, [0, 1]), op.sum(op.multiply(g, op.subtract(x, mean)), [0, 1])])

    for axes in ((5, 61, 33), (1, 700, 16)):
        mod = _lowered(body, (axes, "float32"), (axes, "float32"), (axes[-1:], "float32"))
        assert len(operators(mod)) == 1
        g, x, mean = random(axes, "float32", 1), random(axes, "float32", 2), random(axes[-1:], "float32", 3)
        total, along = _run_all(mod, g, x, mean)
        wide = g.astype("float64")
        assert error(total, wide.sum((0, 1))) < 1e-6
        assert error(along, (wide * (x.astype("float64") - mean)).sum((0, 1))) < 1e-6


def test_rows_are_summed_together_too() -> None:
    mod = _lowered(
        lambda x, y: relax.Tuple([op.sum(x, [1]), op.sum(op.multiply(x, y), [1])]), *[((5, 777), "float32")] * 2
    )
    assert len(operators(mod)) == 1
    x, y = random((5, 777), "float32"), random((5, 777), "float32", 1)
    sums = _run_all(mod, x, y)
    for got, expected in zip(sums, (x.astype("float64"), x.astype("float64") * y), strict=True):
        assert error(got, expected.sum(1)) < 1e-6


def test_a_sum_that_waits_for_another_has_a_sweep_of_its_own() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        total = op.sum(x, [0])
        return op.sum(op.multiply(x, op.subtract(x, total)), [0])

    mod = _lowered(body, ((40, 6), "float32"))
    assert operators(mod) == ["sum0_40x6_over_0_float32", "sum1_40x6_over_0_float32"]


def test_reasons_are_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    _lowered(lambda x: op.sum(x, [0]), ((8, 3), "int32"))
    assert "reductions declines" in (message := capsys.readouterr().err) and "int32" in message
    _lowered(lambda x: op.sum(x, [0]), ((8, 3), "float32"))
    assert "reductions takes" in capsys.readouterr().err


def test_a_reshaped_operand_says_how_many_elements_there_are() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        flat = relax.op.reshape(x, [shape_of(x)[0] * 8])
        return relax.op.collapse_sum_to(flat, relax.ShapeExpr([1]))

    x = random((3, 8), "float32")
    (got,) = run(module(body, (("n", 8), "float32")), x)
    np.testing.assert_allclose(got, x.astype("float64").sum(keepdims=True).reshape(1), rtol=1e-6)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_variance_is_as_exact_however_far_the_mean_is(axes: tuple[int, ...]) -> None:
    """The square of a mean that is off by a rounding of 1e4 would be off by thousands of roundings of the variance."""
    for shape in ((4000, 300), (64, 20000)):
        x = random(shape, "float32") + np.float32(1e4)
        mod = _lowered(lambda x: op.variance(x, axes), (shape, "float32"))
        exact = x.astype("float64").var(axes)
        assert (np.abs(_run(mod, x) - exact) <= 24 * EPSILON["float32"] * exact).all()
