"""Stochastic rounding: to a neighbour, right in the mean, and by the same random bits however it is computed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from tvm import relax

from autocast.ir import dtype_of, static_shape
from autocast.kernels.phases.expand import expand_operators
from autocast.operators.own import stochastic_round
from tests.operators.own.rounding_reference import rounded
from tests.plain import plain_machine

SIZE = 1 << 16
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.0e38, -1.0e-30, 1.0], "float32")


#: How unlikely a count of roundings up must be to be an error. The random bits are those of seed 0 in every run, and
#: all 65,536 fractions that a number can have pass with them, so that no run fails by chance.
UNLIKELY = 1e-9


@given(st.floats(-1e30, 1e30).map(np.float32).filter(lambda number: number == 0 or abs(number) > 1e-30))
@example(np.uint32(0x3F800001).view("float32"))  # one element is expected to round up, and often none does
@example(np.uint32(0x3F80FFFF).view("float32"))
def test_a_number_becomes_one_of_its_two_neighbours_as_often_as_it_is_near_to_it(number: np.float32) -> None:
    bits = number.view("uint32")
    inner, outer = (np.uint32(word).view("float32") for word in (bits >> 16 << 16, (bits >> 16) + 1 << 16))
    found = rounded(np.full(SIZE, number)).astype("float32")
    assert np.isin(found, (inner, outer)).all()
    share = float(bits & 0xFFFF) / (1 << 16)
    count = (found == outer).sum()
    assert min(stats.binom.cdf(count, SIZE, share), stats.binom.sf(count - 1, SIZE, share)) > UNLIKELY


def test_the_errors_of_many_numbers_cancel():
    x = np.random.default_rng(0).standard_normal(SIZE, "float32")
    errors = rounded(x).astype("float64") - x
    deviation = errors.std() / SIZE**0.5
    assert abs(errors.mean()) < 4 * deviation
    assert abs((errors * np.sign(x)).mean()) < 4 * deviation, "neither towards zero nor away from it"


def test_a_sum_of_increments_that_rounding_to_nearest_loses():
    total, nearest = np.ones(1000, "float32"), np.ones(1000, ml_dtypes.bfloat16)
    for step in range(1000):
        total = rounded(total + np.float32(1e-3), step=step).astype("float32")
        nearest = (nearest.astype("float32") + np.float32(1e-3)).astype(ml_dtypes.bfloat16)
    assert (nearest == 1).all(), "an increment is less than half a unit in the last place"
    assert abs(total.mean() - 2) < 4 * total.std() / 1000**0.5
    assert abs(total - 2).max() < 0.5


def test_what_bfloat16_holds_stays_as_it_is():
    values = np.random.default_rng(0).standard_normal(1000).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rounded(values.astype("float32")), values)
    found = rounded(SPECIAL[:5].copy()).astype("float32")
    np.testing.assert_array_equal(found, SPECIAL[:5])
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


def test_the_expansion_is_the_definition():
    x = relax.Var("x", relax.TensorType((9, 7), "float32"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            result = builder.emit_output(stochastic_round(x, state, stream=4))
        builder.emit_func_output(result)
    machine = plain_machine(expand_operators(builder.get()))
    values = np.random.default_rng(0).standard_normal((9, 7), "float32")
    values[0, 0], values[1, 1] = np.nan, np.inf
    got = machine["main"](*map(tvm.runtime.tensor, (values, np.array([-2, 9], "int32")))).numpy()
    np.testing.assert_array_equal(got.astype("float32"), rounded(values, -2, 9, 4).astype("float32"))


@pytest.mark.parametrize("shape", [(2, 3), (5,), ()])
def test_the_type_of_the_result_is_bfloat16_of_the_shape_of_the_data(shape: tuple[int, ...]) -> None:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    state = relax.Var("state", relax.TensorType((2,), "int32"))
    call = relax.BlockBuilder().normalize(stochastic_round(x, state, stream=0))
    assert (dtype_of(call), static_shape(call)) == ("bfloat16", shape)
