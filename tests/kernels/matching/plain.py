"""Run a module TVM's plain way, to compare modules before and after a pass on graphs."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax


def run_plainly(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """What "main" answers, a tensor; nothing is tuned or scheduled."""
    executable = tvm.compile(mod, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()
