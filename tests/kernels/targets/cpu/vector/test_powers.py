"""Powers of numbers of every size against float64."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.exactness import UNITS, units
from tests.kernels.modules import module, run


def test_powers_are_within_their_units_in_the_last_place_for_every_base_and_exponent() -> None:
    rng = np.random.default_rng(0)
    size = 1 << 18
    everywhere = 2.0 ** rng.uniform(-149, 128, size)
    near_one = 1 + rng.standard_normal(size) * 2.0 ** rng.uniform(-23, -1, size)
    base = np.abs(np.concatenate([everywhere, near_one])).astype(np.float32)
    logarithm = np.log2(base.astype(np.float64))
    # Exponents for which results have every exponent, subnormal ones too.
    with np.errstate(divide="ignore"):
        exponent = (rng.uniform(-149, 128, 2 * size) / logarithm).astype(np.float32)
    mod = module(relax.op.power, (base.shape, "float32"), (base.shape, "float32"))
    (got,) = run(mod, base, exponent)
    errors = units(base, got, lambda x: np.power(x, exponent.astype(np.float64)))
    assert errors.max() <= min(1.5, UNITS)
