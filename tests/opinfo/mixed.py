"""Judge a sample in mixed precision: is it as exact as under `torch.autocast`?"""

from __future__ import annotations

import copy
import warnings

import torch

from autocast import amp, vm
from autocast.errors import AutocastError, CastingRuleError
from autocast.frontend import from_torch
from autocast.frontend.importing.randomness import RANDOM_STATE
from tests.opinfo.check import Status, Verdict, copies, line, tensors_of, wide
from tests.opinfo.samples import Sample

#: How many times torch.autocast's error ours may be, and what it may be in any case: samples are small, so that one
#: rounding more or less shows.
TIMES, FLOOR = 2.0, torch.finfo(torch.bfloat16).eps


def check_mixed(sample: Sample) -> Verdict:
    """After `amp.autocast` in bfloat16: the relative Frobenius error of each floating-point result, against float64.

    Skipped is what torch.autocast does not compute, and what is random.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            exact = tensors_of(copy.deepcopy(sample.module).double()(*map(wide, copies(sample))))
            with torch.autocast("cpu", torch.bfloat16):
                theirs = tensors_of(copy.deepcopy(sample.module)(*copies(sample)))
        except Exception as error:
            return Verdict(Status.SKIPPED, f"torch: {line(error)}")
        try:
            model = from_torch(sample.module, copies(sample))
            if RANDOM_STATE in model.params or not sample.defined:
                return Verdict(Status.SKIPPED, "it is random")
            got = tensors_of(vm.compile(amp.autocast(model))(*copies(sample)))
        except (AutocastError, CastingRuleError) as error:
            return Verdict(Status.REFUSED, line(error))
        except Exception as error:
            return Verdict(Status.CRASHED, f"{type(error).__name__}: {line(error)}")
        for number, (ours, other, wanted) in enumerate(zip(got, theirs, exact, strict=True)):
            if wanted.is_floating_point():
                off, allowed = _error(ours, wanted), max(TIMES * _error(other, wanted), FLOOR)
                if not off <= allowed:
                    return Verdict(Status.WRONG, f"result {number} is off by {off:.3g}, expected {allowed:.3g}")
        return Verdict(Status.RIGHT)


def _error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative Frobenius norm of what differs, infinite where what is finite differs."""
    got = got.double()
    same = (got == exact) | (got.isnan() & exact.isnan())
    off = torch.where(same, 0.0, got - exact).norm().nan_to_num(nan=torch.inf)
    size = exact[exact.isfinite()].norm()
    return float(off / size) if off else 0.0
