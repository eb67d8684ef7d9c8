"""Seeded dropout: its random bits look random, and its expansion computes what the definition says."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from scipy import stats
from tvm import relax

from autocast.ir import dtype_of, static_shape
from autocast.kernels.phases.expand import expand_operators
from autocast.operators.own import seeded_dropout
from tests.operators.own.dropout_reference import bits_of, kept
from tests.plain import plain_machine

SIZE = 1 << 20
#: (seed, step, stream): neighbours in each of the three, and both ends of the range.
KEYS = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2**32 - 1, 2**31, 97))


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_set_half_of_the_time(key: tuple[int, int, int]) -> None:
    bits = bits_of((SIZE,), *key)
    deviations = [((bits >> np.uint32(i) & np.uint32(1)).mean() - 0.5) * 2 * SIZE**0.5 for i in range(32)]
    assert max(map(abs, deviations)) < 4.5


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_the_one_that_was_asked_for(key: tuple[int, int, int], rate: float) -> None:
    dropped = SIZE - kept((SIZE,), rate, *key).sum()
    assert abs(dropped - rate * SIZE) < 4.5 * (SIZE * rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("key", KEYS)
def test_numbers_are_uniform(key: tuple[int, int, int]) -> None:
    counts = np.bincount(bits_of((SIZE,), *key) >> np.uint32(22), minlength=1024)
    assert stats.chisquare(counts).pvalue > 1e-5


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two masks, in standard deviations of that of independent ones."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean() / (a.std() * b.std()) * a.size**0.5)


@pytest.mark.parametrize("other", KEYS[1:])
def test_steps_streams_and_seeds_are_independent(other: tuple[int, int, int]) -> None:
    assert abs(_correlation(kept((SIZE,), 0.3, *KEYS[0]), kept((SIZE,), 0.3, *other))) < 4.5


@pytest.mark.parametrize("distance", [1, 2, 3, 16, 64, 128, 768, 1024])
def test_neighbours_in_rows_and_columns_are_independent(distance: int) -> None:
    mask = kept((SIZE,), 0.3, 5, 7, 11)
    assert abs(_correlation(mask[distance:], mask[:-distance])) < 4.5


def test_no_step_of_a_run_draws_what_another_drew() -> None:
    masks = {kept((256,), 0.5, 3, step, stream).tobytes() for step in range(200) for stream in range(10)}
    assert len(masks) == 2000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_expansion_is_the_definition(dtype: str) -> None:
    x = relax.Var("x", relax.TensorType((7, 5, 3), dtype))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            result = builder.emit_output(seeded_dropout(x, state, rate=0.3, stream=4))
        builder.emit_func_output(result)
    machine = plain_machine(expand_operators(builder.get()))
    values = np.random.default_rng(0).standard_normal((7, 5, 3)).astype(dtype)
    got = machine["main"](*map(tvm.runtime.tensor, (values, np.array([-2, 9], "int32")))).numpy()
    expected = np.where(kept((7, 5, 3), 0.3, -2, 9, 4), values / 0.7, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_type_of_the_result_is_that_of_the_data() -> None:
    x = relax.Var("x", relax.TensorType((2, 3), "bfloat16"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    call = relax.BlockBuilder().normalize(seeded_dropout(x, state, rate=0.1, stream=0))
    assert (dtype_of(call), static_shape(call)) == ("bfloat16", (2, 3))
