"""The ways from a module to an executable, all of which give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from autocast import amp, from_relax, vm

#: Small whole numbers: products and sums of a few of them are exact in every dtype.
X, Y, W = (np.random.default_rng(seed).integers(-2, 3, (4, 4)).astype("float32") for seed in range(3))

#: The ways from a module to an executable.
WAYS: dict[str, Callable[[tvm.IRModule], Any]] = {
    "as it is": lambda mod: mod,
    "as a model": from_relax,
    "autocast": amp.autocast,
    "autocast as a model": lambda mod: amp.autocast(from_relax(mod)),
}


def check(mod: tvm.IRModule, expected: np.ndarray, *inputs: np.ndarray) -> None:
    """Whatever way a module takes, its result is `expected`."""
    for name, way in WAYS.items():
        result = vm.compile(way(mod))(*inputs)
        np.testing.assert_array_equal(result, expected, err_msg=name)
