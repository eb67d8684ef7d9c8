"""Run imported models with TVM's own pipeline, and compare them with torch."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch
import tvm
from torch import nn
from tvm import relax

from autocast.frontend.simplifying.normalize import normalize
from autocast.ir import op_name
from autocast.kernels.fallback.recurrent import write_recurrences
from autocast.kernels.phases.expand import expand_operators
from autocast.model.value import Model
from tests.plain import plain_machine


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """Whatever the function returns."""
        return self.function(*args)


def runner(model: Model) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of the model's inputs: compiled with TVM's default pipeline, without our operators and kernels."""
    mod = write_recurrences(expand_operators(model.mod), lambda _: False)
    machine = plain_machine(mod)

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [tvm.runtime.from_dlpack(x.detach().contiguous()) for x in inputs]
        result = machine["main"](*tensors, *model.params.values())
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return tuple(torch.from_dlpack(x).clone() for x in results)

    return run


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the expected tensor; infinite if shape or dtype differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30)) if not torch.equal(got, expected) else 0.0


def assert_close(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Each tensor within `tolerance` of the expected one, in relative error."""
    errors = [relative_error(a, b) for a, b in zip(got, expected, strict=True)]
    assert errors, "nothing was compared"
    assert max(errors) <= tolerance, errors


def operators(model: Model) -> collections.Counter[str]:
    """How often main calls each operator, without the prefix `relax.`."""
    names = [op_name(binding.value) for block in model.main.body.blocks for binding in block.bindings]
    return collections.Counter(name.removeprefix("relax.") for name in names if name)


def normalized(function: relax.Function, num_input: int = 1) -> relax.Function:
    """`function` as it is after `normalize`, its first arguments inputs and the rest parameters."""
    mod = tvm.IRModule({"main": function.with_attr("num_input", num_input)})
    return normalize(mod)[0]["main"]


def assert_becomes(before: relax.Function, expected: relax.Function, num_input: int = 1) -> None:
    """Compare what `normalize` makes of a function with the function expected."""
    expected = expected.with_attr("num_input", num_input)
    expected = tvm.IRModule({"main": expected})["main"].with_attr("global_symbol", "main")
    tvm.ir.assert_structural_equal(normalized(before, num_input).with_attr("global_symbol", "main"), expected)


def asserting(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Twice `x`, whose rows are as many as the largest of the `lengths` or more; pytest rewrites no assert in here."""
    assert lengths.max().item() <= x.shape[0]
    return x * 2
