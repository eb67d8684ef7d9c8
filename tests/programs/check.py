"""One random program in one way, against torch: what it returns, what it writes into its inputs, its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import torch

from autocast import dynamo, vm
from autocast.frontend import from_torch
from autocast.model.value import Model
from autocast.training import differentiate
from tests.programs.generate import DYNAMIC, SIZES, Program, generate, inputs
from tests.programs.outcome import Outcome, outcome_of
from tests.programs.search import Search

#: How programs are run: imported, compiled by torch.compile and differentiated, or imported and differentiated; for one
#: size, or for all.
WAYS = tuple(f"{how}{which}" for how in ("imported", "compiled", "differentiated") for which in ("", ", varying"))


def check(program: Program, way: str) -> Outcome:
    """What comes of a program."""
    run = {"imported": _imported, "compiled": _compiled, "differentiated": _differentiated}[way.partition(",")[0]]
    sizes = SIZES if way.endswith("varying") else SIZES[:1]
    return outcome_of(lambda: run(program, sizes))


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return self.function(x, y, z)


def _model(function: Callable[..., Any], sizes: Sequence[tuple[int, int]], *, training: bool = False) -> Model:
    dynamic = DYNAMIC if len(sizes) > 1 else None
    return from_torch(_Module(function).train(training), tuple(inputs(SIZES[0])), dynamic=dynamic)


def _imported(program: Program, sizes: Sequence[tuple[int, int]]) -> Outcome:
    executable = vm.compile(_model(program.function(), sizes))
    for pair in sizes:
        given, ours = inputs(pair), inputs(pair)
        with torch.no_grad():
            expected = program.function()(*given)
        got = executable(*ours)
        got = got if isinstance(got, tuple) else (got,)
        if why := _difference([*got, *ours], [*expected, *given]):
            return Outcome("wrong", f"{pair}: {why}")
    return Outcome("right")


def _differentiated(program: Program, sizes: Sequence[tuple[int, int]]) -> Outcome:
    plain = program.function()
    chosen = [y.requires_grad for y in plain(*inputs(SIZES[0], gradients=True))]
    if not any(dx.any() for dx in _with_gradients(plain, SIZES[0])[-3:]):  # which `differentiate` refuses
        return Outcome("right")
    model = _model(lambda x, y, z: _weighted(compress(program.function()(x, y, z), chosen)), sizes, training=True)
    mod = model.mod.clone()
    main = model.main.without_attr("updates").without_attr("written")
    mod["main"] = differentiate(main, list(main.params[:3]), mod=model.mod)
    executable = vm.compile(model.replace(mod=mod, output_names=()))
    for pair in sizes:
        *_, dx, dy, dz = executable(*inputs(pair))
        if why := _difference([dx, dy, dz], _with_gradients(plain, pair)[-3:]):
            return Outcome("wrong", f"{pair}: {why}")
    return Outcome("right")


def _weighted(results: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of all elements, each weighted by another number."""
    sums = [(y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).sum() for y in results]
    return sum(sums[1:], sums[0])


def _compiled(program: Program, sizes: Sequence[tuple[int, int]]) -> Outcome:
    ours = _trained(program, sizes, dynamo.backend, options={"policy": "mp0"})
    if ours.is_bad and _trained(program, sizes, "aot_eager").is_bad:
        return Outcome("torch's", ours.why)
    return ours


def _trained(program: Program, sizes: Sequence[tuple[int, int]], backend: Any, **options: Any) -> Outcome:
    torch._dynamo.reset()
    plain = program.function()
    compiled = torch.compile(program.function(), backend=backend, dynamic=len(sizes) > 1, **options)
    for pair in sizes:
        expected = _with_gradients(plain, pair)
        try:
            got = _with_gradients(compiled, pair)
        except Exception as error:
            return Outcome("raised", f"{type(error).__name__}: {error}")
        if why := _difference(got, expected):
            return Outcome("wrong", f"{pair}: {why}")
    return Outcome("right")


def _with_gradients(function: Callable[..., tuple[torch.Tensor, ...]], sizes: tuple[int, int]) -> list[torch.Tensor]:
    """The results, and the gradients of the inputs; zeros where there are none."""
    given = inputs(sizes, gradients=True)
    results = function(*given)
    chosen = [y for y in results if y.requires_grad]
    found = torch.autograd.grad(_weighted(chosen), given, allow_unused=True) if chosen else [None] * 3
    gradients = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(given, found, strict=True)]
    return [*(y.detach() for y in results), *gradients]


def _difference(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """What differs beyond rounding, in words."""
    for i, (one, other) in enumerate(zip(got, expected, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{i} is {tuple(one.shape)} {one.dtype}, expected {tuple(other.shape)} {other.dtype}"
        largest = max(1.0, float(other.abs().max()))
        error = float((one - other).abs().max())
        if not error <= 5e-4 * largest:
            return f"{i} is off by {error:.1e} of {largest:.1e}"
    return ""


def _generate(seed: int, length: int, way: str) -> Program:
    return generate(seed, length, gradients=_differentiates(way))


def _runs(program: Program, way: str) -> bool:
    """Whether torch runs it: names that it reads may be no more, and shapes may not fit."""
    try:
        for sizes in SIZES:
            program.function()(*inputs(sizes, gradients=_differentiates(way)))
    except Exception:
        return False
    return True


def _differentiates(way: str) -> bool:
    return not way.startswith("imported")


SEARCH = Search(WAYS, _generate, check, _runs)
