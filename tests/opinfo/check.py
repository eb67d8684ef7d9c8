"""Judge a sample: does its compiled import compute what torch computes?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocast import vm
from autocast.errors import AutocastError, CastingRuleError
from autocast.frontend import from_torch
from autocast.frontend.importing.randomness import RANDOM_STATE
from tests.opinfo.samples import Sample

#: In units of rounding of the largest number of a result. Samples are small, so that sums are short; what is built of
#: several functions, or solved, loses a few digits in torch as well.
TOLERANCE = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.float64: 64}
#: How many times torch's own error, against float64, ours may be.
TIMES = 4.0


class Status(StrEnum):
    """What came of a sample, the worst first. Left is what is right, and was left to torch, in part at least."""

    CRASHED = "crashed"
    WRONG = "wrong"
    LEFT = "left"
    RIGHT = "right"
    REFUSED = "refused"
    SKIPPED = "skipped"


class Verdict(NamedTuple):
    """A status, and in words what happened."""

    status: Status
    detail: str = ""


def worst(verdicts: Sequence[Verdict]) -> Status:
    """That of an operator: one crash is a crash, and one right sample among refused ones is right."""
    return min((verdict.status for verdict in verdicts), key=list(Status).index, default=Status.SKIPPED)


def check(sample: Sample) -> Verdict:
    """Import, compile and run `sample`; where its values are random or not defined, types and shapes count alone.

    Refused is what ends in an error of ours; any other error is a crash. Skipped is what torch itself does not compute.
    Buffers that a call changes count as results.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        theirs = copy.deepcopy(sample.module)
        try:
            expected = tensors_of(theirs(*copies(sample)))
        except Exception as error:
            return Verdict(Status.SKIPPED, f"torch: {line(error)}")
        if not expected:
            return Verdict(Status.SKIPPED, "it returns no tensor")
        try:
            model = from_torch(sample.module, copies(sample))
            random = RANDOM_STATE in model.params
            executable = vm.compile(model)
            got = tensors_of(executable(*copies(sample)))
            buffers = dict(theirs.named_buffers())
            updates = [name for name in model.updated if name in buffers]
            got += [torch.from_dlpack(executable.state[name]) for name in updates]
            expected += [buffers[name] for name in updates]
        except (AutocastError, CastingRuleError) as error:
            return Verdict(Status.REFUSED, line(error))
        except Exception as error:
            return Verdict(Status.CRASHED, f"{type(error).__name__}: {line(error)}")
        if len(got) != len(expected):
            return Verdict(Status.WRONG, f"{len(got)} results, expected {len(expected)}")
        exact: Sequence[torch.Tensor | None] | None = None
        for number, (ours, wanted) in enumerate(zip(got, expected, strict=True)):
            if (ours.dtype, ours.shape) != (wanted.dtype, wanted.shape):
                return Verdict(Status.WRONG, f"{_type(ours)}, expected {_type(wanted)}")
            if sample.defined and not random and difference(ours, wanted):
                exact = exact or _exact(sample, updates) or [None] * len(expected)
                if off := difference(ours, wanted, exact[number]):
                    return Verdict(Status.WRONG, off)
        return Verdict(Status.LEFT, ", ".join(model.fallbacks)) if model.fallbacks else Verdict(Status.RIGHT)


def _exact(sample: Sample, updates: Sequence[str]) -> list[torch.Tensor]:
    """The results in float64, and the buffers that are `updates`; none where torch has none."""
    module = copy.deepcopy(sample.module).double()
    try:
        results = tensors_of(module(*map(wide, copies(sample))))
    except Exception:  # numbers of another dtype are in the module, or an operator does not know float64
        return []
    return [*results, *(dict(module.named_buffers())[name] for name in updates)]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64 if it is floating-point."""
    return tensor.double() if tensor.is_floating_point() else tensor


def copies(sample: Sample) -> tuple[torch.Tensor, ...]:
    """The sample's tensors, for an operator that may write into them."""
    return tuple(tensor.clone() for tensor in sample.tensors)


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in what a module returns."""
    leaves = [_of_array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in pytree.tree_leaves(result)]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _of_array(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # which is none of NumPy's own
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _type(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")


def difference(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor | None = None) -> str:
    """How much two tensors of one type differ, in words; nothing where they agree, or where `exact`, of float64, says
    that torch's own are not much nearer."""
    if got.is_sparse or got.layout != torch.strided:
        got, expected, exact = got.to_dense(), expected.to_dense(), None
    if not got.is_floating_point() and not got.is_complex():
        count = int((got != expected).sum())
        return f"{count} of {got.numel()} elements differ" if count else ""
    if got.is_complex():
        got, expected = torch.view_as_real(got.resolve_conj()), torch.view_as_real(expected.resolve_conj())
        exact = None
    tolerance = TOLERANCE.get(got.dtype, 64) * torch.finfo(got.dtype).eps
    got, expected = got.double(), expected.double()
    exact = expected if exact is None else torch.where(exact.isfinite(), exact.double(), expected)
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    ours, theirs = _error(got, expected, exact), _error(expected, expected, exact)
    off = ours > max(tolerance * max(scale, 1e-30), TIMES * theirs)
    return (
        f"off by {ours:.3g} where the largest number is {scale:.3g} and torch's are off by {theirs:.3g}" if off else ""
    )


def _error(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference from what is exact where torch's numbers are finite; infinite where ours are not, or only
    ours are."""
    same = (got == expected) | (got.isnan() & expected.isnan())
    error = torch.where(same & ~expected.isfinite(), 0.0, (got - exact).abs()).nan_to_num(nan=torch.inf)
    return float(error.max()) if error.numel() else 0.0


def line(error: Exception) -> str:
    """The beginning of an error's message."""
    lines = str(error).strip().splitlines()
    return " | ".join(line.strip() for line in lines[:3])[:300] if lines else type(error).__name__
