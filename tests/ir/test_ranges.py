"""Which integers an expression may have, and that none of its elements is another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast.ir.ranges import Range, range_of
from autocast.ir.rewriting import users_of
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import module

op = relax.op


def wide(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "int32")


CASES: dict[str, tuple[Callable[..., relax.Expr], str, Range]] = {
    "bytes": (lambda x: x, "uint8", Range(0, 255)),
    "truth values": (wide, "bool", Range(0, 1)),
    "less a constant": (lambda x: op.subtract(wide(x), relax.const(128, "int32")), "uint8", Range(-128, 127)),
    "less another": (lambda x: op.subtract(wide(x), wide(op.flip(x, 0))), "int8", Range(-255, 255)),
    "a square": (lambda x: op.multiply(wide(x), wide(x)), "int8", Range(-16256, 16384)),
    "moved": (lambda x: op.reshape(op.permute_dims(wide(x)), [3, 2, 2]), "int8", Range(-128, 127)),
    "joined": (lambda x: op.concat([wide(x), relax.const([[300, 1, 2]], "int32")], 0), "int8", Range(-128, 300)),
    "that wraps around": (lambda x: op.add(x, x), "int8", Range(-128, 127)),
    "narrowed": (lambda x: op.astype(wide(x), "int8"), "uint8", Range(-128, 127)),
    "a sum, of which nothing is known": (lambda x: op.sum(wide(x), [0]), "int8", Range(-(2**31), 2**31 - 1)),
}


def range_in(body: Callable[..., relax.Expr], dtype: str) -> Range | None:
    function = module(body, ((4, 3), dtype))["main"]
    return range_of(function.body.body, users_of(function)[0])


@pytest.mark.parametrize("case", CASES)
def test_the_range_of(case: str) -> None:
    body, dtype, expected = CASES[case]
    assert range_in(body, dtype) == expected


def test_numbers_of_other_kinds_have_none() -> None:
    assert range_in(lambda x: op.exp(x), "float32") is None


STEPS: tuple[Callable[[relax.Expr], relax.Expr], ...] = (
    wide,
    op.permute_dims,
    lambda x: op.astype(x, "int8"),
    lambda x: op.add(x, x),
    lambda x: op.multiply(x, x),
    lambda x: op.subtract(x, op.flip(x, 0)),
    lambda x: op.concat([x, x], 1),
    lambda x: op.strided_slice(x, [0], [0], [2]),
    lambda x: op.max(x, [0], keepdims=True),
)


@given(st.lists(st.sampled_from(STEPS), max_size=5), st.sampled_from(["int8", "uint8"]), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_no_element_is_outside(steps: list, dtype: str, seed: int) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        for step in steps:
            x = step(x)
        return x

    bounds = np.iinfo(dtype)
    x = np.random.default_rng(seed).choice([bounds.min, bounds.max, 1, 0], (4, 3)).astype(dtype)
    mod = module(body, ((4, 3), dtype))
    found = range_of(mod["main"].body.body, users_of(mod["main"])[0])
    result = run_plainly(mod, x).astype("int64")
    assert found is not None and result.size and found.holds(Range(int(result.min()), int(result.max())))
