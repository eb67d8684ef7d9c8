"""Rows written by their numbers: into a copy, or where the tensor is, with all others left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

import autocast
from autocast import vm
from autocast.kernels import detect_target
from autocast.kernels.matching.layout.row_writes_rule import lower_row_writes
from autocast.kernels.targets import backend_of
from autocast.operators import own
from tests.kernels.modules import module, operators, random, run


def _expected(x: np.ndarray, numbers: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    out, size = np.moveaxis(x.copy(), axis, 0), x.shape[axis]
    for number, row in zip(numbers, np.moveaxis(rows, axis, 0), strict=True):
        out[np.clip(number + size if number < 0 else number, 0, size - 1)] = row
    return np.moveaxis(out, 0, axis)


def _case(x: tuple[int, ...], count: int, axis: int) -> tuple[tuple[int, ...], np.ndarray]:
    """The shape of what is written, and numbers beyond both ends among others."""
    height = x[axis]
    numbers = np.random.default_rng(1).integers(-height - 2, height + 2, count)
    return (*x[:axis], count, *x[axis + 1 :]), numbers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int8", "bool"])
@pytest.mark.parametrize(
    ("x", "count", "axis"),
    [((7, 33), 3, 0), ((2, 3, 9, 5), 4, 2), ((4, 1), 6, 0), ((5, 6), 2, 1), ((3, 300, 40), 1, 1), ((8,), 3, 0)],
)
def test_rows_are_where_their_numbers_say(x: tuple[int, ...], count: int, axis: int, dtype: str) -> None:
    shape, numbers = _case(x, count, axis)
    values = [(random(size, "float32") * 9).astype(dtype) for size in (x, shape)]
    mod = module(lambda a, n, b: own.index_copy(a, n, b, axis=axis), (x, dtype), ((count,), "int64"), (shape, dtype))
    assert operators(lower_row_writes(mod, backend_of(detect_target()))) == [
        f"index_copy0_{'x'.join(map(str, x))}_{dtype}"
    ]
    (got,) = run(mod, values[0], numbers, values[1])
    assert np.array_equal(got, _expected(values[0], numbers, values[1], axis))


def test_nothing_is_written_where_there_are_no_rows() -> None:
    mod = module(
        lambda a, n, b: own.index_copy(a, n, b, axis=0), ((3, 4), "float32"), ((0,), "int64"), ((0, 4), "float32")
    )
    x = random((3, 4), "float32")
    (got,) = run(mod, x, np.zeros(0, "int64"), np.zeros((0, 4), "float32"))
    assert np.array_equal(got, x)


def test_rows_are_converted_as_they_are_written() -> None:
    def body(x: relax.Expr, numbers: relax.Expr, rows: relax.Expr) -> relax.Expr:
        return own.index_copy(x, numbers, relax.op.astype(rows, "bfloat16"), axis=1)

    mod = module(body, ((2, 9, 40), "bfloat16"), ((3,), "int32"), ((2, 3, 40), "float32"))
    x, rows, numbers = random((2, 9, 40), "bfloat16"), random((2, 3, 40), "float32"), np.array([7, 0, -2], "int32")
    (got,) = run(mod, x, numbers, rows)
    assert np.array_equal(got, _expected(x, numbers, rows.astype("bfloat16"), 1))


class _Cache(nn.Module):
    """Keeps rows in a buffer, and gives what is in it."""

    def __init__(self, reads_old: bool) -> None:
        super().__init__()
        self.reads_old = reads_old
        self.register_buffer("kept", torch.zeros(2, 9, 5))

    def forward(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        old = self.kept.sum() if self.reads_old else 0
        self.kept.index_copy_(1, places, rows)
        return self.kept * 2 + old


@pytest.mark.parametrize("reads_old", [False, True])
@pytest.mark.parametrize("dynamic", [None, {"n": [("rows", 1, 1, 9), ("places", 0, 1, 9)]}])
def test_state_is_written_in_place_in_every_call(reads_old: bool, dynamic: object) -> None:
    module = _Cache(reads_old)
    inputs = [(torch.randn(2, 3, 5), torch.tensor(places)) for places in ([1, 7, 4], [0, 1, 8], [7, 2, 3])]
    executable = vm.compile(autocast.from_torch(module, inputs[0], dynamic=dynamic))
    assert any(name.startswith("index_copy") and name.endswith("_in_place") for name in executable.program.kernels)
    for one in inputs:
        torch.testing.assert_close(executable(*one), module(*one))
    torch.testing.assert_close(torch.from_dlpack(executable.state["kept"]), module.kept)
