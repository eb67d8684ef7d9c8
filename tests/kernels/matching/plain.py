"""Run a module TVM's plain way, to compare modules before and after a pass on graphs."""

from __future__ import annotations

import numpy as np
import tvm

from tests.plain import plain_machine


def run_plainly(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """What "main" answers, a tensor; nothing is tuned or scheduled."""
    machine = plain_machine(mod)
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()
