"""Loss scaling: keeps small gradients above the smallest number of float16, inside the graph of the training step.

The loss is multiplied by a scale before it is differentiated, the gradients by its inverse before they are used. Where
a gradient is not finite, the step changes no parameter; a dynamic scale falls then, and rises after many finite steps.

Source: Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from autocast.errors import TrainingError
from autocast.messages import check_option, is_count, is_number, named_options

op = relax.op

#: The smallest number that a scale falls to, and the largest that float32 has.
_SMALLEST_SCALE = 1.0
_LARGEST_SCALE = float(np.finfo("float32").max)


@dataclass(frozen=True)
class StaticLossScaling:
    """One scale for all steps; a step whose gradients are not finite is skipped."""

    scale: float

    def __post_init__(self) -> None:
        _check(self, "scale", lambda value: 0 < value <= _LARGEST_SCALE, "above 0, and a number of float32")

    @property
    def initial_state(self) -> dict[str, np.ndarray]:
        """The parameters that hold the state: their names and first values, 0-d arrays."""
        return {"loss_scale": np.array(self.scale, "float32")}

    def update(self, builder: relax.BlockBuilder, state: dict[str, relax.Expr], finite: relax.Expr) -> dict:
        """What replaces the state after a step whose gradients were `finite` (a 0-d bool): nothing."""
        return {}


@named_options(
    TrainingError,
    {
        "init_scale": "it is init_loss_scaling",
        "growth_factor": "it is incr_ratio",
        "backoff_factor": "it is decr_ratio",
        "growth_interval": "it is incr_every_n_steps",
    },
    positional="try loss_scaling=1024.0 for a scale that stays",
)
@dataclass(frozen=True, kw_only=True)
class DynamicLossScaling:
    """A scale that follows the gradients.

    Attributes
    ----------
    init_loss_scaling : float
        The first scale.
    incr_every_n_steps : int
        The scale is multiplied by `incr_ratio` after this many finite steps in a row, unless that overflows.
    decr_every_n_nan_or_inf : int
        It is multiplied by `decr_ratio` after this many steps in a row that were not finite, but does not fall below 1.
    """

    init_loss_scaling: float = 2.0**15
    incr_every_n_steps: int = 1000
    decr_every_n_nan_or_inf: int = 2
    incr_ratio: float = 2.0
    decr_ratio: float = 0.8

    def __post_init__(self) -> None:
        _check(self, "init_loss_scaling", lambda value: _SMALLEST_SCALE <= value <= _LARGEST_SCALE, "1 to 3.4e38")
        _check(self, "incr_every_n_steps", lambda value: is_count(value, 1), "a number of steps: 1 or more")
        _check(self, "decr_every_n_nan_or_inf", lambda value: is_count(value, 1), "a number of steps: 1 or more")
        _check(self, "incr_ratio", lambda value: is_number(value) and value > 1, "a finite number above 1")
        _check(self, "decr_ratio", lambda value: 0 < value < 1, "0 to 1, both excluded")

    @property
    def initial_state(self) -> dict[str, np.ndarray]:
        """The parameters that hold the state: their names and first values, 0-d arrays."""
        return {
            "loss_scale": np.array(self.init_loss_scaling, "float32"),
            "finite_steps": np.array(0, "int64"),
            "overflow_steps": np.array(0, "int64"),
        }

    def update(self, builder: relax.BlockBuilder, state: dict[str, relax.Expr], finite: relax.Expr) -> dict:
        """What replaces the state after a step whose gradients were `finite` (a 0-d bool), by name."""
        zero, one = relax.const(0, "int64"), relax.const(1, "int64")
        scale = state["loss_scale"]
        good = builder.emit(op.where(finite, state["finite_steps"] + one, zero), "good")
        bad = builder.emit(op.where(finite, zero, state["overflow_steps"] + one), "bad")
        rises = builder.emit(op.greater_equal(good, relax.const(self.incr_every_n_steps, "int64")), "rises")
        falls = builder.emit(op.greater_equal(bad, relax.const(self.decr_every_n_nan_or_inf, "int64")), "falls")
        higher = builder.emit(scale * relax.const(self.incr_ratio, "float32"), "higher")
        higher = op.where(op.less(higher, relax.const(float("inf"), "float32")), higher, scale)
        lower = op.maximum(scale * relax.const(self.decr_ratio, "float32"), relax.const(_SMALLEST_SCALE, "float32"))
        return {
            "loss_scale": op.where(rises, higher, op.where(falls, lower, scale)),
            "finite_steps": op.where(rises, zero, good),
            "overflow_steps": op.where(falls, zero, bad),
        }


LossScaling = StaticLossScaling | DynamicLossScaling


def parse(loss_scaling: float | LossScaling | None) -> LossScaling | None:
    """What `training_step` takes: a number is a static scale."""
    if loss_scaling is None or isinstance(loss_scaling, StaticLossScaling | DynamicLossScaling):
        return loss_scaling
    if isinstance(loss_scaling, int | float) and not isinstance(loss_scaling, bool):
        return StaticLossScaling(float(loss_scaling))
    raise TrainingError(
        f"training_step: loss_scaling is {loss_scaling!r}, expected None, a number or DynamicLossScaling(); float16 "
        "needs it, bfloat16 does not"
    )


def _check(scaling: LossScaling, name: str, is_legal: Callable[[Any], bool], expected: str) -> None:
    check_option(scaling, name, is_legal, TrainingError, expected)
