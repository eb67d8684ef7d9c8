"""Which signs of joined parts end up in factors, and that no bit of a result changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.fold_signs import fold_signs
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import module, operators, random, run

op = relax.op


def _halves(x: relax.Expr, axis: int) -> list[relax.Expr]:
    return [relax.TupleGetItem(op.split(x, 2, axis), half) for half in (0, 1)]


def _rotary(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    first, second = _halves(x, -1)
    return op.add(x, op.multiply(op.concat([op.negative(second), first], -1), sine))


def _rotary_along_rows(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    first, second = _halves(x, 1)
    return op.multiply(sine, op.concat([first, op.negative(second)], 1))


def _interleaved(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    even, odd = (op.strided_slice(x, [2], [begin], [8], [2]) for begin in (0, 1))
    turned = op.reshape(op.stack([op.negative(odd), even], -1), [2, 6, 8])
    return op.add(x, op.multiply(turned, sine))


def _stacked_first(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    return op.multiply(op.stack([op.negative(x), op.exp(x)], 0), op.reshape(op.concat([sine, sine], 0), [2, 2, 6, 8]))


FOLDED: dict[str, tuple[Callable[..., relax.Expr], tuple[int, ...]]] = {
    "halves": (_rotary, (6, 8)),
    "halves of every position alike": (_rotary, (8,)),
    "along rows": (_rotary_along_rows, (2, 6, 8)),
    "neighbours": (_interleaved, (6, 8)),
    "stacked first": (_stacked_first, (2, 6, 8)),
}


def _shared(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    first, second = _halves(x, -1)
    turned = op.concat([op.negative(second), first], -1)
    return op.add(op.multiply(turned, sine), turned)


def _of_one_factor(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    return _rotary(x, op.reshape(sine, [6, 1]))


def _negated_for_others(x: relax.Expr, sine: relax.Expr) -> relax.Expr:
    first, second = _halves(x, -1)
    negated = op.negative(second)
    return op.add(op.multiply(op.concat([negated, first], -1), sine), op.concat([negated, negated], -1))


LEFT: dict[str, tuple[Callable[..., relax.Expr], tuple[int, ...]]] = {
    "what is joined is read by others": (_shared, (6, 8)),
    "one factor for all parts": (_of_one_factor, (6,)),
    "what is negated is read by others": (_negated_for_others, (6, 8)),
}


def _module(body: Callable[..., relax.Expr], factor: tuple[int, ...], dtype: str) -> tuple[tvm.IRModule, list]:
    shapes = [(2, 6, 8), factor]
    values = [random(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    values[0].flat[:4] = np.nan, np.inf, -0.0, 0.0
    return canonicalize(module(body, *[(shape, dtype) for shape in shapes])), values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", FOLDED)
def test_signs_are_those_of_the_factor_and_no_bit_changes(case: str, dtype: str) -> None:
    mod, values = _module(*FOLDED[case], dtype)
    folded = fold_signs(mod)
    assert "relax.negative" in operators(mod) and "relax.negative" not in operators(folded)
    results = run_plainly(mod, *values), run_plainly(folded, *values), *run(mod, *values)
    before, after, computed = (result.astype("float32") for result in results)
    numbers = ~np.isnan(before)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(np.signbit(after[numbers]), np.signbit(before[numbers]))
    np.testing.assert_allclose(computed, before, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", LEFT)
def test_it_leaves(case: str) -> None:
    mod, _ = _module(*LEFT[case], "float32")
    tvm.ir.assert_structural_equal(fold_signs(mod), mod)


def test_sizes_that_are_not_known_do_not_matter_beside_the_joined_axis_and_are_left_there() -> None:
    def joined(x: relax.Expr, y: relax.Expr, factor: relax.Expr) -> relax.Expr:
        return op.multiply(op.concat([op.negative(x), y], 0), factor)

    along = module(joined, *[((n, "length"), "float32") for n in (2, 2, 4)])
    last = module(_rotary, ((2, "length", 8), "float32"), ((8,), "float32"))
    across = module(lambda x, y: joined(x, x, op.concat([y, y], 0)), *[(("length", 3), "float32")] * 2)
    folded = [fold_signs(canonicalize(mod)) for mod in (along, last, across)]
    assert ["relax.negative" in operators(mod) for mod in folded] == [True, False, True]


def test_queries_and_keys_share_a_factor() -> None:
    def both(q: relax.Expr, k: relax.Expr, sine: relax.Expr) -> relax.Expr:
        return relax.Tuple([_rotary(q, sine), _rotary(k, sine)])

    mod = canonicalize(module(both, *[(shape, "float32") for shape in ((2, 6, 8), (1, 6, 8), (6, 8))]))
    assert operators(mod).count("relax.multiply") == 2
    assert operators(canonicalize(fold_signs(mod))).count("relax.multiply") == 3
