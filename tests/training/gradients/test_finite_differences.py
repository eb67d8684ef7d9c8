"""Every row with a formula gives the slope that central differences measure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from autocast.operators import own
from tests.training.gradients.checking import Run, arguments, check_gradients, programs_of


class Case(NamedTuple):
    """A call of an operator on float64 arrays of these shapes, and the integers that follow them."""

    build: Callable[..., relax.Expr]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    indices: tuple[np.ndarray, ...] = ()


def _index(*values: object, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


def _unary(names: str, low: float = -2.0, high: float = 2.0) -> dict[str, Case]:
    return {name: Case(getattr(op, name), ((2, 3),), low, high) for name in names.split()}


def _binary(names: str, low: float = -2.0, high: float = 2.0) -> dict[str, Case]:
    cases = {}
    for name in names.split():
        cases[name] = Case(getattr(op, name), ((2, 3), (2, 3)), low, high)
        cases[f"{name} broadcast left"] = Case(getattr(op, name), ((1, 3), (2, 2, 1)), low, high)
        cases[f"{name} broadcast right"] = Case(getattr(op, name), ((2, 2, 3), (3,)), low, high)
    return cases


ELEMENTWISE = {
    **_unary("abs atan asinh cos cosh erf exp negative sigmoid sin sinh square tan tanh", -1.4, 1.4),
    **_unary("log sqrt rsqrt", 0.3, 3.0),
    **_unary("asin acos atanh", -0.9, 0.9),
    "nn.expm1": Case(own.expm1, ((2, 3),)),
    "nn.log1p": Case(own.log1p, ((2, 3),), -0.9, 2.0),
    **_unary("acosh", 1.2, 3.0),
    **_binary("add subtract multiply maximum minimum log_add_exp atan2"),
    **_binary("divide power mod floor_mod", 0.6, 3.1),
    "power of a literal": Case(lambda x: op.power(x, relax.const(3.0, "float64")), ((2, 3),)),
    "power of two": Case(lambda x: op.power(x, relax.const(2.0, "float64")), ((2, 3),)),
    "power of zero": Case(lambda x: op.power(x, relax.const(0.0, "float64")), ((2, 3),)),
    "divide by a literal": Case(lambda x: op.divide(x, relax.const(3.0, "float64")), ((2, 3),)),
    "clip": Case(lambda x: op.clip(x, -1.0, 0.8), ((3, 4),)),
    "nn.grouped_matmul": Case(own.grouped_matmul, ((5, 3), (4, 3, 2)), indices=(_index(2, 2, 3, 5),)),
    "nn.grouped_matmul that leaves rows": Case(own.grouped_matmul, ((5, 3), (2, 3, 2)), indices=(_index(1, 3),)),
    **{
        f"nn.{name}{' backwards' * reverse}": Case(partial(operator, **options, reverse=reverse), shapes)
        for reverse in (False, True)
        for name, operator, options, shapes in (
            ("lstm", own.lstm, {}, ((3, 2, 8), (8, 2), (2, 2), (2, 2))),
            ("gru", own.gru, {}, ((3, 2, 6), (6, 2), (2,), (2, 2))),
            ("rnn", own.rnn, {"activation": "tanh"}, ((3, 2, 2), (2, 2), (2, 2))),
        )
    },
    "nn.rnn of relu": Case(partial(own.rnn, activation="relu", reverse=False), ((3, 2, 2), (2, 2), (2, 2)), 0.3, 1.0),
    "nn.lstm of which the last state is read": Case(
        lambda *x: relax.TupleGetItem(own.lstm(*x, reverse=False), 1), ((3, 2, 8), (8, 2), (2, 2), (2, 2))
    ),
    "nn.hardtanh": Case(lambda x: own.hardtanh(x, low=-0.5, high=0.75), ((3, 4),)),
    "nn.gated_add": Case(own.gated_add, ((2, 3), (2, 3), (2, 3))),
    "nn.gated_add of one to itself": Case(lambda x: own.gated_add(x, x, x), ((2, 3),)),
    "outer": Case(op.outer, ((2,), (3,))),
    "add of one to itself": Case(lambda x: op.add(x, x), ((2, 3),)),
    "multiply of one by itself": Case(lambda x: op.multiply(x, x), ((2, 3),)),
}

SPECIAL = {
    **{
        f"special.{name}": Case(getattr(own.special, name), ((2, 3),))
        for name in (
            *("bessel_j0", "bessel_j1", "digamma", "erfc", "erfcx", "i0", "i0e", "i1", "i1e", "lgamma", "log_ndtr"),
        )
    },
    **{f"special.{name}": Case(getattr(own.special, name), ((2, 3),), 0.3, 3.0) for name in ("bessel_y0", "bessel_y1")},
    "special.erfinv": Case(own.special.erfinv, ((2, 3),), -0.9, 0.9),
    "special.frexp": Case(own.special.frexp, ((2, 3),), 0.51, 0.99),
    "special.ndtri": Case(own.special.ndtri, ((2, 3),), 0.1, 0.9),
    "special.polygamma": Case(partial(own.special.polygamma, n=2), ((2, 3),), 0.5, 3.0),
    "special.zeta": Case(
        lambda q: own.special.zeta(relax.const(np.full((2, 3), 2.5), "float64"), q), ((2, 3),), 0.5, 3.0
    ),
}

PRODUCTS = {
    "matmul": Case(op.matmul, ((2, 3), (3, 4))),
    "matmul of a batch and a matrix": Case(op.matmul, ((2, 2, 3), (3, 2))),
    "matmul of two batches": Case(op.matmul, ((2, 2, 3), (2, 3, 2))),
    "matmul of batches that broadcast": Case(op.matmul, ((2, 1, 2, 3), (2, 3, 2))),
    "matmul of a matrix and a batch": Case(op.matmul, ((2, 3), (2, 3, 2))),
    "matmul of a vector and a matrix": Case(op.matmul, ((3,), (3, 2))),
    "matmul of a vector and a batch": Case(op.matmul, ((3,), (2, 3, 2))),
    "matmul of a matrix and a vector": Case(op.matmul, ((2, 3), (3,))),
    "matmul of a batch and a vector": Case(op.matmul, ((2, 2, 3), (3,))),
    "matmul of two vectors": Case(op.matmul, ((3,), (3,))),
    "einsum of two": Case(lambda x, y: op.einsum([x, y], "bij,bkj->bik"), ((2, 2, 3), (2, 2, 3))),
    "einsum of three": Case(lambda x, y, z: op.einsum([x, y, z], "ij,jk,k->i"), ((2, 3), (3, 2), (2,))),
}

REDUCTIONS = {
    **{
        f"{name} {axis} {keepdims}": Case(
            lambda x, name=name, axis=axis, keepdims=keepdims: getattr(op, name)(x, axis, keepdims), ((2, 3, 2),)
        )
        for name in ["sum", "mean", "max", "min", "prod", "variance", "std"]
        for axis, keepdims in [(None, False), (1, False), ([0, -1], True), ([0, 2], False)]
    },
    "median": Case(lambda x: op.median(x, 1), ((3, 5),)),
    "cumsum": Case(lambda x: op.cumsum(x, 1), ((2, 4),)),
    "cumsum exclusive": Case(lambda x: op.cumsum(x, 0, exclusive=True), ((3, 2),)),
    "cumsum of all": Case(lambda x: op.cumsum(x), ((2, 3),)),
    "collapse_sum_to": Case(lambda x: op.collapse_sum_to(x, (1, 3)), ((2, 2, 3),)),
    "collapse_sum_like": Case(lambda x: op.collapse_sum_like(x, op.zeros((2, 1), "float64")), ((2, 2, 3),)),
}

LAYOUT = {
    "reshape": Case(lambda x: op.reshape(x, (3, 4)), ((2, 6),)),
    "flatten": Case(op.flatten, ((2, 3),)),
    "nn.batch_flatten": Case(op.nn.batch_flatten, ((2, 2, 3),)),
    "squeeze": Case(lambda x: op.squeeze(x, [1]), ((2, 1, 3),)),
    "squeeze of all": Case(op.squeeze, ((1, 3, 1),)),
    "expand_dims": Case(lambda x: op.expand_dims(x, [0, -1]), ((2, 3),)),
    "permute_dims": Case(lambda x: op.permute_dims(x, [2, 0, -2]), ((2, 3, 4),)),
    "permute_dims of all": Case(op.permute_dims, ((2, 3, 4),)),
    "layout_transform": Case(lambda x: op.layout_transform(x, lambda i, j: (j // 2, i, j % 2)), ((2, 4),)),
    "broadcast_to": Case(lambda x: op.broadcast_to(x, (4, 2, 3)), ((2, 1),)),
    "repeat": Case(lambda x: op.repeat(x, 3, -1), ((2, 3),)),
    "repeat of all": Case(lambda x: op.repeat(x, 2), ((2, 3),)),
    "tile": Case(lambda x: op.tile(x, (2, 1, 3)), ((2, 3),)),
    "tile of some axes": Case(lambda x: op.tile(x, (2,)), ((2, 3),)),
    "flip": Case(lambda x: op.flip(x, 1), ((2, 3),)),
    "reverse_sequence": Case(lambda x, n: op.reverse_sequence(x, n, 1, 0), ((3, 4),), indices=(_index(1, 3, 4),)),
    "split": Case(lambda x: op.split(x, [1, 3], 1), ((2, 4),)),
    "split in equal parts": Case(lambda x: op.split(x, 2, 0), ((4, 2),)),
    "concat": Case(lambda x, y: op.concat([x, y, x], -1), ((2, 1), (2, 3))),
    "stack": Case(lambda x, y: op.stack([x, y, x], 1), ((2, 3), (2, 3))),
    "meshgrid ij": Case(lambda x, y: op.meshgrid([x, y], "ij"), ((2,), (3,))),
    "nn.pad": Case(lambda x: op.nn.pad(x, [0, 0, 1, 2]), ((2, 3),)),
    "nn.pad that cuts": Case(lambda x: op.nn.pad(x, [-1, 2, 0, -1, -1, -1]), ((3, 4, 5),)),
    "tril": Case(lambda x: op.tril(x, 1), ((3, 4),)),
    "triu": Case(lambda x: op.triu(x, -1), ((3, 4),)),
}

INDEXING = {
    "take rows": Case(lambda x, i: op.take(x, i, 0), ((4, 3),), indices=(_index([1, 3, 1], [0, 0, 1]),)),
    "take columns": Case(lambda x, i: op.take(x, i, 1), ((2, 4, 2),), indices=(_index([1, 3, 1], [0, 0, 1]),)),
    "take of all": Case(lambda x, i: op.take(x, i), ((6,),), indices=(_index(5, 1, 1),)),
    "take one": Case(lambda x: op.take(x, relax.const(2, "int64"), 0), ((4, 3),)),
    "take that wraps": Case(lambda x, i: op.take(x, i, 0, mode="wrap"), ((4, 3),), indices=(_index(-1, 5, 2),)),
    "gather_elements": Case(
        lambda x, i: op.gather_elements(x, i, 1), ((2, 3),), indices=(_index([1, 1, 0, 2], [2, 2, 2, 0]),)
    ),
    "gather_nd": Case(lambda x, i: op.gather_nd(x, i), ((3, 2, 2),), indices=(_index([0, 1], [2, 0], [0, 1]),)),
    "index_tensor": Case(
        lambda x, i, j: op.index_tensor(x, [i, j]), ((3, 4),), indices=(_index(0, 2, 0), _index(1, 3, 1))
    ),
    "index_tensor of two axes": Case(
        lambda x, i, j: op.index_tensor(x, [i, j]), ((3, 4),), indices=(_index([0], [2]), _index([1, 3, 1]))
    ),
    "index_tensor of rows": Case(
        lambda x, i, j: op.index_tensor(x, [i, j]), ((3, 4, 2),), indices=(_index([0], [2]), _index(1, 3, 1))
    ),
    "strided_slice": Case(lambda x: op.strided_slice(x, [0, -1], [1, 0], [3, 2]), ((4, 3),)),
    "strided_slice from the end": Case(lambda x: op.strided_slice(x, [1], [-2], [9]), ((2, 5),)),
    "strided_slice with steps": Case(lambda x: op.strided_slice(x, [0, 1], [1, 0], [7, 5], [2, 3]), ((7, 5),)),
    "strided_slice backwards": Case(lambda x: op.strided_slice(x, [0], [-1], [-8], [-1]), ((5, 2),)),
    "strided_slice backwards with steps": Case(lambda x: op.strided_slice(x, [0], [5], [0], [-2]), ((6, 2),)),
    **{
        f"scatter_elements {how}": Case(
            lambda x, y, i, how=how: op.scatter_elements(x, i, y, 0, how),
            ((3, 2), (2, 2)),
            indices=(_index([0, 2], [1, 1]),),
        )
        for how in ("update", "add", "max", "min")
    },
    "nn.index_copy": Case(
        lambda x, y, i: own.index_copy(x, i, y, axis=1), ((3, 4, 2), (3, 2, 2)), indices=(_index(3, 1),)
    ),
    **{
        f"scatter_nd {how}": Case(
            lambda x, y, i, how=how: op.scatter_nd(x, i, y, how), ((4, 2), (2, 2)), indices=(_index([3], [1]),)
        )
        for how in ("update", "add")
    },
    **{
        f"index_put accumulate={how}": Case(
            lambda x, y, i, j, how=how: op.index_put(x, (i, j), y, how),
            ((3, 3), (2,)),
            indices=(_index(0, 2), _index(1, 1)),
        )
        for how in (False, True)
    },
    "slice_scatter": Case(lambda x, y: op.slice_scatter(x, y, 1, 4, 2, 0), ((5, 2), (2, 2))),
    "where": Case(
        lambda x, y, c: op.where(c, x, y), ((2, 3), (3,)), indices=(_index([[True], [False]], dtype="bool")[0],)
    ),
    "sort": Case(lambda x: op.sort(x, 1), ((3, 4),)),
    "sort downwards": Case(lambda x: op.sort(x, 0, descending=True), ((4, 2),)),
    "topk": Case(lambda x: op.topk(x, 2, 1), ((3, 4),)),
    "topk of the least": Case(lambda x: op.topk(x, 3, 0, "both", False, "int64"), ((4, 2),)),
}

CONVERSION = {
    "astype": Case(lambda x: op.astype(op.astype(x, "float64"), "float64"), ((2, 3),)),
    "full": Case(lambda x: op.full((2, 3), x), ((),)),
    "full_like": Case(lambda x: op.full_like(op.zeros((2, 3), "float64"), x), ((),)),
    "grad.start_checkpoint": Case(lambda x: op.exp(op.grad.start_checkpoint(x)), ((2, 3),)),
    "grad.end_checkpoint": Case(lambda x: op.grad.end_checkpoint(op.exp(x)), ((2, 3),)),
}

CASES = {**ELEMENTWISE, **SPECIAL, **PRODUCTS, **REDUCTIONS, **LAYOUT, **INDEXING, **CONVERSION}


def _data(name: str) -> list[np.ndarray]:
    case = CASES[name]
    return [*arguments(len(name), *case.shapes, low=case.low, high=case.high), *case.indices]


@pytest.fixture(scope="module")
def programs() -> dict[str, Run]:
    return programs_of({name: (case.build, _data(name)) for name, case in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_the_slope_that_central_differences_measure(programs: dict[str, Run], name: str) -> None:
    check_gradients(programs[name], *_data(name))
