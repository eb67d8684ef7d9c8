"""Judge a sample's gradients: are those of its module, compiled by `torch.compile`, what torch's autograd computes?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autocast import dynamo
from autocast.errors import AutocastError, CastingRuleError
from tests.opinfo.check import Status, Verdict, difference, line, tensors_of
from tests.opinfo.samples import Sample


def check_gradients(sample: Sample) -> Verdict:
    """Differentiate a weighted sum of the results by the floating-point tensors, in float32 throughout.

    Skipped is what torch does not differentiate, or not twice in the same way: random numbers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected, again = (_gradients(sample.module, sample.tensors) for _ in range(2))
        except Exception as error:
            return Verdict(Status.SKIPPED, f"torch: {line(error)}")
        if not any(one is not None for one in expected):
            return Verdict(Status.SKIPPED, "it has no gradient")
        if any(one is not None and difference(one, two) for one, two in zip(expected, again, strict=True)):
            return Verdict(Status.SKIPPED, "it is random")
        torch._dynamo.reset()
        compiled = torch.compile(sample.module, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=False)
        try:
            got = _gradients(compiled, sample.tensors)
        except Exception as error:
            causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
            ours = next((cause for cause in causes if isinstance(cause, AutocastError | CastingRuleError)), None)
            ours = ours or getattr(error, "inner_exception", None)
            if isinstance(ours, AutocastError | CastingRuleError):
                return Verdict(Status.REFUSED, line(ours))
            return Verdict(Status.CRASHED, f"{type(error).__name__}: {line(error)}")
        for ours_, theirs in zip(got, expected, strict=True):
            if (ours_ is None) != (theirs is None):
                return Verdict(Status.WRONG, f"a gradient is {ours_!r:.60}, expected {theirs!r:.60}")
            if theirs is not None and (ours_.dtype, ours_.shape) != (theirs.dtype, theirs.shape):
                return Verdict(
                    Status.WRONG, f"a gradient is {ours_.dtype} {list(ours_.shape)}, expected {theirs.shape}"
                )
            if theirs is not None and (off := difference(ours_, theirs)):
                return Verdict(Status.WRONG, off)
        return Verdict(Status.RIGHT)


def _gradients(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """Of the sum of the results, each element weighted by another number, by the inputs; None where there is none."""
    inputs = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    results = [result for result in tensors_of(call(*inputs)) if result.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not results or not wanted:
        return [None]
    weights = [torch.linspace(0.5, 1.5, max(result.numel(), 1))[: result.numel()] for result in results]
    pairs = zip(results, weights, strict=True)
    total = sum(((result * weight.reshape(result.shape)).sum() for result, weight in pairs), torch.zeros(()))
    return torch.autograd.grad(total, wanted, allow_unused=True)
