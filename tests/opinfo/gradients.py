"""Judge a sample's gradients, by `torch.compile` and by `autocast.training`: are they those of torch's autograd?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from autocast import dynamo, vm
from autocast.errors import AutocastError, CastingRuleError
from autocast.frontend import from_torch
from autocast.training import differentiate
from tests.opinfo.check import Status, Verdict, difference, line, tensors_of, wide
from tests.opinfo.samples import Sample


def check_gradients(sample: Sample) -> Verdict:
    """Differentiate a weighted sum of the results by the floating-point tensors and the parameters, in float32
    throughout, by `torch.compile`.

    Skipped is what torch does not differentiate, or not twice in the same way: random numbers.
    """
    torch._dynamo.reset()
    compiled = torch.compile(sample.module, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=False)
    return _check(sample, lambda: _gradients(sample, compiled))


def check_training(sample: Sample) -> Verdict:
    """As `check_gradients`, of the imported module as `autocast.training` differentiates it."""
    return _check(sample, lambda: _differentiated(sample))


def _check(sample: Sample, differentiated: Callable[[], Sequence[Any]]) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected, again = (_gradients(sample, sample.module) for _ in range(2))
        except Exception as error:
            return Verdict(Status.SKIPPED, f"torch: {line(error)}")
        if not any(one is not None for one in expected):
            return Verdict(Status.SKIPPED, "it has no gradient")
        if any(one is not None and difference(one, two) for one, two in zip(expected, again, strict=True)):
            return Verdict(Status.SKIPPED, "it is random")
        try:
            got = differentiated()
        except Exception as error:
            causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
            ours = next((cause for cause in causes if isinstance(cause, AutocastError | CastingRuleError)), None)
            ours = ours or getattr(error, "inner_exception", None)
            if isinstance(ours, AutocastError | CastingRuleError):
                return Verdict(Status.REFUSED, line(ours))
            return Verdict(Status.CRASHED, f"{type(error).__name__}: {line(error)}")
        exact: Sequence[torch.Tensor | None] | None = None
        for number, (ours_, theirs) in enumerate(zip(got, expected, strict=True)):
            if theirs is None and isinstance(ours_, torch.Tensor) and not ours_.any():
                continue
            if ours_ is None and isinstance(theirs, torch.Tensor) and not theirs.any():
                continue
            if (ours_ is None) != (theirs is None):
                return Verdict(Status.WRONG, f"a gradient is {ours_!r:.60}, expected {theirs!r:.60}")
            if theirs is not None and (ours_.dtype, ours_.shape) != (theirs.dtype, theirs.shape):
                return Verdict(
                    Status.WRONG, f"a gradient is {ours_.dtype} {list(ours_.shape)}, expected {theirs.shape}"
                )
            if theirs is not None and difference(ours_, theirs):
                exact = exact or _exact(sample) or [None] * len(expected)
                if off := difference(ours_, theirs, exact[number]):
                    return Verdict(Status.WRONG, off)
        return Verdict(Status.RIGHT)


def _gradients(sample: Sample, call: Callable[..., Any]) -> Sequence[Any]:
    """Of the sum of the results, each element weighted by another number, by the inputs and the parameters; None where
    there is none."""
    inputs = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in sample.tensors]
    results = [result for result in tensors_of(call(*inputs)) if result.requires_grad]
    wanted = [tensor for tensor in [*inputs, *sample.module.parameters()] if tensor.requires_grad]
    if not results or not wanted:
        return [None]
    return torch.autograd.grad(_weighted(results), wanted, allow_unused=True)


def _exact(sample: Sample) -> Sequence[Any]:
    """The gradients in float64; none where torch has none."""
    module = copy.deepcopy(sample.module).double()
    wide_ = sample._replace(module=module, tensors=tuple(map(wide, sample.tensors)))
    try:
        return _gradients(wide_, module)
    except Exception:  # numbers of another dtype are in the module, or an operator does not know float64
        return []


def _weighted(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of all elements, each weighted by another number."""
    weights = [torch.linspace(0.5, 1.5, max(result.numel(), 1))[: result.numel()] for result in results]
    pairs = zip(results, weights, strict=True)
    return sum(((result * weight.reshape(result.shape)).sum() for result, weight in pairs), torch.zeros(()))


class _Weighted(nn.Module):
    """The weighted sum of a module's results that have gradients."""

    def __init__(self, module: nn.Module, chosen: Sequence[bool]) -> None:
        super().__init__()
        self.module, self.chosen = module, chosen

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        results = zip(tensors_of(self.module(*tensors)), self.chosen, strict=True)
        return _weighted([result for result, chosen in results if chosen])


def _differentiated(sample: Sample) -> Sequence[Any]:
    """The gradients that `_gradients` gives, of the imported module; zeros where nothing depends on a tensor."""
    inputs = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in sample.tensors]
    chosen = [result.requires_grad for result in tensors_of(sample.module(*inputs))]
    module = _Weighted(sample.module, chosen)
    model = from_torch(module.train(sample.module.training), tuple(sample.tensors))
    names = {f"module.{name}": parameter for name, parameter in sample.module.named_parameters()}
    variables = dict(zip([*model.input_names, *model.params], model.main.params, strict=True))
    wanted = [
        variables.get(name) if wants else None
        for name, wants in (
            *zip(model.input_names, (tensor.requires_grad for tensor in inputs), strict=True),
            *((name, parameter.requires_grad) for name, parameter in names.items()),
        )
        if wants
    ]
    mod = model.mod.clone()
    function = model.main.without_attr("updates")
    mod["main"] = differentiate(function, [var for var in wanted if var is not None], mod=model.mod)
    results = vm.compile(model.replace(mod=mod, output_names=()))(*sample.tensors)
    gradients = iter(results[-sum(var is not None for var in wanted) :])
    return [None if var is None else next(gradients) for var in wanted]
