"""One random network through one door, against torch in float64: results, gradients, buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.frontend import from_torch
from tests.networks.generate import DYNAMIC, SIZES, Network, generate, inputs
from tests.networks.onnx_files import imported_file, written_file
from tests.programs.outcome import Outcome, outcome_of
from tests.programs.search import Search

#: How networks are run: imported for one size or for all, in mixed precision, to torch, from ONNX files that torch's
#: exporters make for all sizes, to such a file, or trained by `wrap`.
WAYS = (
    *("imported", "imported, varying", "mixed", "to torch"),
    *("from onnx", "from traced onnx", "to onnx", "trained", "trained, mixed"),
)

#: What may be added to torch's own error, of the largest value.
_FLOOR = 2e-5


def check(network: Network, way: str) -> Outcome:
    """What comes of a network."""
    if way.endswith("onnx"):
        return outcome_of(lambda: _as_file(network, way))
    mixed = way.endswith("mixed")
    return outcome_of(lambda: _trained(network, mixed) if way.startswith("trained") else _imported(network, way))


def _as_file(network: Network, way: str) -> Outcome:
    run = written_file(network) if way == "to onnx" else imported_file(network, traced="traced" in way)
    if run is None:
        return Outcome("torch's")
    for sizes in SIZES:
        with torch.no_grad():
            exact = network.module().eval().double()(**inputs(sizes, torch.float64))
            theirs = network.module().eval()(**inputs(sizes))
            ours = run(inputs(sizes))
        if why := _difference(ours, theirs, exact, mixed=False):
            return Outcome("wrong", f"{sizes}: {why}")
    return Outcome("right")


def _imported(network: Network, way: str) -> Outcome:
    dynamic = DYNAMIC if way.endswith("varying") else None
    model = from_torch(network.module().eval(), tuple(inputs(SIZES[0]).values()), dynamic=dynamic)
    mixed = way == "mixed"
    model = amp.autocast(model) if mixed else model
    run = autocast.to_torch(model) if way == "to torch" else vm.compile(model)
    for sizes in SIZES if dynamic else SIZES[:1]:
        with torch.no_grad():
            exact = network.module().eval().double()(**inputs(sizes, torch.float64))
            theirs = _plain(network.module().eval(), inputs(sizes), mixed)
            ours = run(*inputs(sizes).values())
        ours = ours if isinstance(ours, tuple) else (ours,)
        if why := _difference(ours, theirs, exact, mixed=mixed):
            return Outcome("wrong", f"{sizes}: {why}")
    return Outcome("right")


def _plain(module: nn.Module, given: Mapping[str, torch.Tensor], mixed: bool) -> Sequence[torch.Tensor]:
    """What torch computes, by torch.autocast where it can: it has no recurrent layers for every processor."""
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return module(**given)
    except RuntimeError:
        return module(**given)


def _trained(network: Network, mixed: bool) -> Outcome:
    wrapped = autocast.wrap(network.module().train(), **({} if mixed else {"policy": "mp0"}))
    plain, exact = network.module().train(), network.module().train().double()
    for sizes in SIZES:
        ours, theirs, true = _step(wrapped, sizes), _step(plain, sizes, mixed), _step(exact, sizes, dtype=torch.float64)
        if why := _difference(ours, theirs, true, mixed=mixed):
            return Outcome("wrong", f"{sizes}: {why}")
    return Outcome("right")


def _step(
    module: nn.Module, sizes: tuple[int, int, int, int], mixed: bool = False, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """The results, the gradients of inputs and parameters, and the buffers after it."""
    given = inputs(sizes, dtype)
    leaves = [x.requires_grad_() for x in given.values() if x.is_floating_point()] + list(module.parameters())
    results = _plain(module, {name: x.clone() for name, x in given.items()}, mixed)
    sums = [(y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).sum() for y in results if y.requires_grad]
    gradients = torch.autograd.grad(sum(sums[1:], sums[0]), leaves, allow_unused=True) if sums else [None] * len(leaves)
    zeros = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(leaves, gradients, strict=True)]
    return [*(y.detach() for y in results), *zeros, *(b.clone() for b in module.buffers())]


def _difference(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], *, mixed: bool
) -> str:
    """What is further from `exact` than rounding makes it, in words."""
    for i, (one, other, true) in enumerate(zip(ours, theirs, exact, strict=True)):
        if one.shape != true.shape or (not mixed and one.dtype != other.dtype):
            return f"{i} is {tuple(one.shape)} {one.dtype}, expected {tuple(true.shape)} {other.dtype}"
        largest = max(1.0, float(true.abs().max()))
        error, usual = (float((y.double() - true).abs().max()) for y in (one, other))
        if not error <= 4 * usual + (2e-2 if mixed else _FLOOR) * largest:
            return f"{i} of {len(exact)} is off by {error:.1e} of {largest:.1e}, torch's by {usual:.1e}"
    return ""


def _runs(network: Network, way: str) -> bool:
    """Whether torch runs it: shapes may not fit any more."""
    try:
        for sizes in SIZES:
            network.module().train(way.startswith("trained"))(**inputs(sizes))
    except Exception:
        return False
    return True


SEARCH = Search(WAYS, lambda seed, length, way: generate(seed, length), check, _runs)
