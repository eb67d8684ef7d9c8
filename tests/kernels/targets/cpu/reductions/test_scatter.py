"""Gradients of lookups: rows are added to the rows that numbers name, in place of the dense gradient or of zeros."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.reductions.scatter_rule import lower_scatters
from autocast.kernels.specs.reductions import Scatter
from autocast.kernels.state.in_place import sharing
from autocast.kernels.targets import backend_of
from autocast.kernels.targets.cpu.reductions.scatter import scatter
from tests.kernels.compiling import compile_kernels
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def _expected(base: np.ndarray, rows: np.ndarray, numbers: np.ndarray, axis: int) -> np.ndarray:
    """`base` with the rows added, in float64."""
    out = np.moveaxis(base.astype("float64"), axis, 0).copy()
    last = axis + numbers.ndim
    order = [*range(axis, last), *range(axis), *range(last, rows.ndim)]
    np.add.at(out, numbers, rows.astype("float64").transpose(order))
    return np.moveaxis(out, 0, axis)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("table", "numbers", "axis"),
    [
        ((7, 33), (2, 9), 0),
        ((300, 768), (4, 16), 0),
        ((5, 1), (11,), 0),
        ((3, 6, 17), (8,), 1),
        ((4, 9), (2, 3), 1),
        ((2, 16), (), 0),
    ],
)
def test_gradients_match_float64(table: tuple, numbers: tuple, axis: int, dtype: str) -> None:
    labels = np.asarray(np.random.default_rng(2).integers(-table[axis], table[axis], numbers), "int64")
    rows = random((*table[:axis], *numbers, *table[axis + 1 :]), dtype)

    def body(g: relax.Expr, x: relax.Expr, n: relax.Expr) -> relax.Expr:
        return op.grad.take_backward(op.astype(g, "float32"), x, n, axis)

    mod = module(body, (rows.shape, dtype), (table, "float32"), (numbers, "int64"))
    assert any(name.startswith("scatter") for name in operators(lower_scatters(mod, backend_of(detect_target()))))
    (got,) = run(mod, rows, random(table, "float32"), labels)
    assert error(got, _expected(np.zeros(table), rows, labels, axis)) < 16 * EPSILON["float32"]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("count", [24, "n"])
def test_a_dense_gradient_of_the_same_table_is_where_rows_are_added(first: bool, count: int | str) -> None:
    def body(g: relax.Expr, x: relax.Expr, n: relax.Expr, dense: relax.Expr) -> relax.Expr:
        sparse = op.grad.take_backward(g, x, n, 0)
        return op.add(dense, sparse) if first else op.add(sparse, dense)

    table = ((50, 130), "float32")
    mod = module(body, ((count, 130), "float32"), table, ((count,), "int32"), table)
    (call,) = operators(lower_scatters(mod, backend_of(detect_target())))
    assert call.startswith("scatter0_50x130")
    rows, dense = random((24, 130), "float32"), random((50, 130), "float32", 1)
    labels = np.random.default_rng(3).integers(0, 50, 24).astype("int32")
    (got,) = run(mod, rows, dense, labels, dense)
    assert error(got, _expected(dense, rows, labels, 0)) < 4 * EPSILON["float32"]


def test_a_gradient_that_others_read_is_stored_by_itself() -> None:
    def body(g: relax.Expr, x: relax.Expr, n: relax.Expr) -> relax.Expr:
        sparse = op.grad.take_backward(g, x, n, 0)
        return op.multiply(op.add(x, sparse), sparse)

    mod = module(body, ((6, 8), "float32"), ((4, 8), "float32"), ((6,), "int64"))
    assert operators(lower_scatters(mod, backend_of(detect_target()))) == [
        "scatter0_4x8_float32",
        "relax.add",
        "relax.multiply",
    ]


def test_the_result_may_be_written_over_the_dense_gradient() -> None:
    rows = (((9, 40), "float32"), ((9,), "int32"))
    function = scatter(Scatter(*rows, (5, 40), 0, based=True), detect_target(), "main")
    assert [list(pair) for pair in function.attrs["autocast.in_place"]] == [[0, 2]]
    kernel = compile_kernels({"main": sharing(function, [(3, 2)])}, detect_target())
    values, numbers = random((9, 40), "float32"), np.array([0, 1, 2, 2, 2, 4, 0, 1, 1], "int32")
    dense = random((5, 40), "float32", 1)
    table = tvm.runtime.tensor(dense)
    kernel["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(numbers), table)
    assert error(table.numpy(), _expected(dense, values, numbers, 0)) < 4 * EPSILON["float32"]


def test_integers_are_declined_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    arguments = ((6, 8), "float64"), ((4, 8), "float64"), ((6,), "int64")
    mod = module(lambda g, x, n: op.grad.take_backward(g, x, n, 0), *arguments)
    assert operators(lower_scatters(mod, backend_of(detect_target()))) == ["relax.grad.take_backward"]
    assert "it adds float64 to float64" in capsys.readouterr().err
