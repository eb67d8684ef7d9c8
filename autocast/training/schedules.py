"""Learning rates that change from step to step: functions of the number of steps that are done, as frozen values.

The learning rate is an input of a training step, so a schedule is plain Python: any function of an integer is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsFloat

from autocast.errors import InputError, TrainingError
from autocast.messages import check_option, is_count, is_number, shown

_RATE = "a finite learning rate of 0 or more"


@dataclass(frozen=True)
class Constant:
    """The same learning rate for every step; with `warmup`, it rises to it linearly over that many steps."""

    peak: float
    warmup: int = 0

    def __post_init__(self) -> None:
        check_option(self, "peak", lambda peak: is_number(peak) and peak >= 0, TrainingError, _RATE)
        check_option(self, "warmup", is_count, TrainingError, "a whole number of steps, 0 or more")

    def __call__(self, step: int) -> float:
        """The learning rate after `step` steps; step 0 has `peak / warmup`."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        return self.peak * self.decay(step - self.warmup)

    def decay(self, step: int) -> float:
        """The share of the peak that is left `step` steps after the warmup."""
        return 1.0


@dataclass(frozen=True)
class InverseSquareRoot(Constant):
    """`peak / sqrt(1 + step / max(warmup, 1))` after the warmup (Vaswani et al., 2017)."""

    def decay(self, step: int) -> float:
        return 1 / math.sqrt(1 + step / max(self.warmup, 1))


@dataclass(frozen=True)
class Linear(Constant):
    """From the peak in a straight line to `floor`, which is reached at step `steps` (warmup included) and kept."""

    steps: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option(self, "floor", is_number, TrainingError, _RATE)
        check_option(self, "steps", is_count, TrainingError, "a whole number of steps, the warmup's included")
        if not self.steps > self.warmup or not 0 <= self.floor <= self.peak or not self.peak:
            raise TrainingError(
                f"{self}: expected steps above warmup, a peak above 0, and a floor from 0 to the peak. "
                f"Try {type(self).__name__}(peak=1e-3, warmup=100, steps=10_000)"
            )

    def decay(self, step: int) -> float:
        return self._between(1 - self._done(step))

    def _done(self, step: int) -> float:
        return min(step / (self.steps - self.warmup), 1.0)

    def _between(self, share: float) -> float:
        floor = self.floor / self.peak
        return floor + (1 - floor) * share


@dataclass(frozen=True)
class Cosine(Linear):
    """From the peak to `floor` along half a cosine, with the fields of `Linear` (Loshchilov and Hutter, 2017)."""

    def decay(self, step: int) -> float:
        return self._between((1 + math.cos(math.pi * self._done(step))) / 2)


def rate_at(learning_rate: float | Callable[[int], float], step: int) -> float:
    """The learning rate after `step` steps, of a number or a schedule.

    Raises
    ------
    InputError
        It is no finite number, or below 0.
    """
    is_rate = not callable(learning_rate) or isinstance(learning_rate, type)
    rate: Any = learning_rate if is_rate else learning_rate(step)  # type: ignore[operator]
    try:
        value = float(rate) if isinstance(rate, SupportsFloat) and not isinstance(rate, bool) else math.nan
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(
            f"Trainer: the learning rate of step {step} is {shown(rate)}, expected a finite number of 0 or more, "
            "or a schedule that returns one: Linear(0.01, warmup=10, steps=100)"
        )
    return value
