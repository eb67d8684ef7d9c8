"""What is as quickly computed as read is computed by each of its readers, and what is not is stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax

from autocast.kernels.phases.repeat import repeat_cheap
from tests.kernels.modules import module, operators

op = relax.op

X, VECTOR, MASK = ((64, 32), "float32"), ((32,), "float32"), ((64, 32), "bool")


def _centered(x: relax.Expr, mean: relax.Expr) -> relax.Expr:
    centered = op.subtract(x, mean)
    return op.add(op.exp(centered), op.sum(centered, [0]))


def _masked(mask: relax.Expr, g: relax.Expr) -> relax.Expr:
    masked = op.where(mask, g, relax.const(0.0, "float32"))
    return op.add(op.exp(masked), op.sum(masked, [0]))


def _chained(x: relax.Expr, mean: relax.Expr) -> relax.Expr:
    scaled = op.multiply(op.subtract(x, mean), mean)
    return op.add(op.exp(scaled), op.sum(scaled, [0]))


def _of_two(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    total = op.add(x, y)
    return op.add(op.exp(total), op.add(op.sum(total, [0]), op.max(total, [0])))


def _slow(x: relax.Expr) -> relax.Expr:
    value = op.exp(x)
    return op.add(op.tanh(value), op.sum(value, [0]))


def _moved(x: relax.Expr, mean: relax.Expr) -> relax.Expr:
    centered = op.subtract(x, mean)
    return op.add(op.permute_dims(op.permute_dims(centered)), op.sum(centered, [0]))


@pytest.mark.parametrize(
    ("body", "arguments", "name", "times"),
    [
        (_centered, (X, VECTOR), "relax.subtract", 2),
        (_masked, (MASK, X), "relax.where", 2),
        (_chained, (X, VECTOR), "relax.multiply", 2),
        (_of_two, (X, X), "relax.add", 3),
        (_slow, (X,), "relax.exp", 1),
        (_moved, (X, VECTOR), "relax.subtract", 1),
    ],
    ids=["centered", "masked", "chained", "of two tensors", "a polynomial", "read by what moves data"],
)
def test_readers_compute_what_is_as_quick_as_reading(
    body: Callable[..., relax.Expr], arguments: tuple, name: str, times: int
) -> None:
    mod = repeat_cheap(module(body, *arguments))
    assert operators(mod).count(name) == times
    relax.analysis.well_formed(mod)
