"""Errors of the gradients of all parameters, ours and torch's, against torch in float64: eight small architectures.

python -m benchmarks.gradient_errors [--only bert]
"""

from __future__ import annotations

import argparse
import copy
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import autocast
from autocast import amp, vm
from autocast.training.append_loss import append_loss
from autocast.training.differentiate import differentiate
from autocast.training.losses import MSE, CrossEntropy
from benchmarks.timing import save
from tests.architectures import ARCHITECTURES, Architecture, flatten

#: (side, precision), in the order of the table.
CANDIDATES = (("ours", "bfloat16"), ("torch", "bfloat16"), ("ours", "float32"), ("torch", "float32"))

#: Architectures whose outputs are not logits.
_REGRESSIONS = ("lstm", "unet")

#: How many times the error of torch.autocast ours may be: the roundings of a few sums differ.
TOLERANCE = 1.05

Gradients = dict[str, np.ndarray]


class Errors(NamedTuple):
    """Relative Frobenius errors: of all gradients as one vector, and of the worst parameter among those that matter."""

    total: float
    worst: float


class Problem(NamedTuple):
    """An architecture, a batch, and a loss: cross-entropy of the first output, or the mean squared error."""

    architecture: Architecture
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    labels: torch.Tensor
    loss: CrossEntropy | MSE


def problem(name: str, seed: int = 1) -> Problem:
    """The problem of an architecture; the seed is that of inputs and labels."""
    architecture = ARCHITECTURES[name]()
    args, kwargs = architecture.inputs(2, seed)
    shape = architecture.reference(*args, **kwargs)[0].shape
    generator = torch.Generator().manual_seed(seed)
    if name in _REGRESSIONS:
        return Problem(architecture, args, kwargs, torch.randn(shape, generator=generator), MSE())
    labels = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    return Problem(architecture, args, kwargs, labels, CrossEntropy())


def our_gradients(problem: Problem, precision: str) -> Gradients:
    """The gradients of all parameters by their names in torch, compiled as a training step has them."""
    architecture = problem.architecture
    model = autocast.from_torch(architecture.module, architecture.args, example_kwargs=architecture.kwargs)
    model = append_loss(model, problem.loss)
    params = dict(zip(model.params, model.main.params[model.num_input :], strict=True))
    trained = [name for name, _ in architecture.module.named_parameters() if name in params]
    mod = model.mod.clone()
    mod["main"] = differentiate(model.main, [params[name] for name in trained])
    model = model.replace(mod=mod, output_names=())
    if precision != "float32":
        model = amp.autocast(model, dtype=precision)
    _, *gradients = vm.compile(model)(*problem.args, *problem.kwargs.values(), problem.labels)
    return {name: np.asarray(gradient, "float64") for name, gradient in zip(trained, gradients, strict=True)}


def torch_gradients(problem: Problem, precision: str) -> Gradients:
    """The same by torch: in float32, in float64, or by its autocast."""
    wide = torch.float64 if precision == "float64" else torch.float32
    module = copy.deepcopy(problem.architecture.module).to(wide).requires_grad_(True)
    args: Any = [_widened(tensor, wide) for tensor in problem.args]
    kwargs = {name: _widened(tensor, wide) for name, tensor in problem.kwargs.items()}
    low = precision not in ("float32", "float64")
    with torch.autocast("cpu", dtype=getattr(torch, precision)) if low else nullcontext():
        output = flatten(module(*args, **kwargs))[0]
    output = output.to(wide)
    if isinstance(problem.loss, MSE):
        loss = functional.mse_loss(output, problem.labels.to(wide))
    else:
        loss = functional.cross_entropy(output.flatten(0, -2), problem.labels.flatten())
    loss.backward()
    return {name: p.grad.double().numpy() for name, p in module.named_parameters() if p.grad is not None}


def _widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def errors(found: Gradients, exact: Gradients) -> Errors:
    """How far gradients are from exact ones. Parameters with less than 1e-3 of the whole norm do not count as worst."""
    assert found.keys() == exact.keys(), found.keys() ^ exact.keys()
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in exact.items()}
    distances = {name: float(np.linalg.norm(found[name] - exact[name])) for name in exact}
    norm = float(np.linalg.norm(list(norms.values())))
    worst = max(distances[name] / norms[name] for name in exact if norms[name] > 1e-3 * norm)
    return Errors(float(np.linalg.norm(list(distances.values()))) / norm, worst)


def measure(name: str, candidates: tuple[tuple[str, str], ...] = CANDIDATES, seed: int = 1) -> dict[str, Errors]:
    """The errors of the candidates on one architecture: "ours bfloat16" -> errors."""
    case = problem(name, seed)
    exact = torch_gradients(case, "float64")
    functions = {"ours": our_gradients, "torch": torch_gradients}
    return {f"{side} {precision}": errors(functions[side](case, precision), exact) for side, precision in candidates}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write the results; on how many architectures ours is worse than torch.autocast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only architectures whose name holds this text; nothing is written")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    table = Table(title="relative errors of all gradients, and of the worst parameter")
    for heading in ("model", *(f"{side} {precision}" for side, precision in CANDIDATES), "ours / torch, bfloat16"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    results = {name: measure(name) for name in ARCHITECTURES if options.only in name}
    ratios = {name: found["ours bfloat16"].total / found["torch bfloat16"].total for name, found in results.items()}
    for name, found in results.items():
        table.add_row(name, *(f"{e.total:.1e}, {e.worst:.1e}" for e in found.values()), f"{ratios[name]:.2f}")
    console.print(table)
    if not options.only:
        figures = {name: {candidate: e._asdict() for candidate, e in found.items()} for name, found in results.items()}
        console.print(f"written to {save('gradient_errors', {'models': figures})}")
    return sum(ratio > TOLERANCE for ratio in ratios.values())


if __name__ == "__main__":
    raise SystemExit(main())
