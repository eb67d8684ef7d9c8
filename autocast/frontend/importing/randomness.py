"""The random state of a model: the parameter `random_state`, int32 (seed, steps taken), with an update that counts.

A checkpoint holds it like any parameter, so a run that is resumed draws the numbers that it would have drawn.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from autocast.errors import InputError
from autocast.messages import check_value, is_whole

#: The parameter's name.
RANDOM_STATE = "random_state"


def random_state(seed: int) -> tvm.runtime.Tensor:
    """The state before the first step: (seed modulo 2^32, 0) in int32; an InputError unless it is a whole number."""
    check_value("random numbers", "seed", seed, is_whole, InputError, "a whole number, such as 0")
    return tvm.runtime.tensor(np.array([seed % 2**32, 0], "uint32").view("int32"))


def random_state_variable() -> relax.Var:
    """The parameter of main that holds the state."""
    return relax.Var(RANDOM_STATE, relax.TensorType([2], "int32"))


def next_random_state(state: relax.Expr) -> relax.Expr:
    """The state after a step."""
    return relax.op.add(state, relax.const(np.array([0, 1], "int32")))
