"""Divisions of what decreases, in indices, are what they say: TVM computes other numbers of some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax, te, tirx

import autocast
from autocast import vm
from autocast.kernels.fallback.divisions import keep_divisions
from tests.kernels.modules import module, run

op = relax.op
_N = 12


def _kernel(index: Callable[[tirx.Expr], tirx.Expr]) -> tirx.PrimFunc:
    x = te.placeholder((64,), "int64", name="x")
    kernel = te.create_prim_func([x, te.compute((_N,), lambda i: x[index(i)], name="y")])
    return kernel.with_attr("global_symbol", "kernel")


#: An index of i, and what it is for numbers.
INDICES: dict[str, tuple[Callable, Callable[[int], int]]] = {
    "quotient": (lambda i: tirx.floordiv(11 - i, 2), lambda i: (11 - i) // 2),
    "remainder": (lambda i: tirx.floormod(11 - i, 3), lambda i: (11 - i) % 3),
    "remainder of a quotient": (lambda i: tirx.floormod(5 - tirx.floordiv(i, 2), 4), lambda i: (5 - i // 2) % 4),
    "quotient of a remainder": (lambda i: tirx.floordiv(11 - tirx.floormod(i, 6), 2), lambda i: (11 - i % 6) // 2),
    "product": (lambda i: tirx.floordiv(i * -1 + 11, 4), lambda i: (11 - i) // 4),
    "quotient below 0": (lambda i: tirx.floordiv(5 - i, 2) + 8, lambda i: (5 - i) // 2 + 8),
    "remainder below 0": (lambda i: tirx.floormod(5 - i, 4), lambda i: (5 - i) % 4),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_that_decreases_is_divided(name: str) -> None:
    index, number = INDICES[name]
    builder = relax.BlockBuilder()
    kernel = builder.add_func(_kernel(index), "kernel")
    x = relax.Var("x", relax.TensorType((64,), "int64"))
    with builder.function("main", [x]):
        y = builder.emit(relax.call_tir(kernel, [x], relax.TensorType((_N,), "int64")))
        builder.emit_func_output(y)
    got = vm.compile(autocast.from_relax(builder.get()))(np.arange(64))
    assert got.tolist() == [number(i) for i in range(_N)]


def test_what_only_increases_is_left_alone() -> None:
    mod = tvm.IRModule({"kernel": _kernel(lambda i: tirx.floordiv(i + 7, 2))})
    assert keep_divisions(mod).same_as(mod)


def test_repeated_elements_are_reversed() -> None:
    x = np.array([0, 6, 12])
    mod = module(lambda v: op.flip(relax.BlockBuilder().normalize(op.repeat(v, 2)), axis=0), (x.shape, "int64"))
    assert run(mod, x)[0].tolist() == [12, 12, 6, 6, 0, 0]


def test_torchs_flip_of_repeated_elements() -> None:
    class Mirrored(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat_interleave(3).flip(0)

    x = torch.randn(5)
    torch.testing.assert_close(autocast.from_torch(Mirrored(), (x,))(x), Mirrored()(x))
