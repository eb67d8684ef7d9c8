"""How much longer a call takes by the kernels that serve a model until it is compiled than by its own.

    python -m benchmarks.generic [--quick] [--rounds 7]

Both run the same casts, in turn, after rests: torch's kernels, operator by operator (`mode="dynamic_hybrid"`, with no
compiler beside them), and the compiled model. Mixed precision, bfloat16.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import gmean

import autocast
from autocast import amp, training, vm
from autocast.runtime.tensors import to_tensor
from autocast.vm.generic import Generic
from benchmarks.first_iteration import cases, made
from benchmarks.timing import Timing, alternate, save

#: Seconds of rest before each side: threads of the other one spin for a while.
_PAUSE = 0.3


def measure(name: str, rounds: int) -> dict[str, Timing]:
    """Both sides on one model."""
    module, inputs, labels = made(name)
    model = autocast.from_torch(module, inputs)
    if labels is not None:
        model = training.training_step(model, training.CrossEntropy(), training.SGD(momentum=0.01))
        inputs = (*inputs, labels, torch.tensor(0.1))
    model = amp.autocast(model)
    executable, generic = vm.compile(model), Generic(model)
    tensors = list(map(to_tensor, inputs))
    sides = {"compiled": lambda: executable(*inputs), "generic": lambda: generic(*tensors)}
    return alternate(sides, rounds=rounds, calls=2, warmup=1, pause=_PAUSE)


def table(found: Mapping[str, Mapping[str, Timing]]) -> Table:
    """One row for each model, with medians and what the generic call takes of the other's time."""
    ratios = [sides["generic"].median / sides["compiled"].median for sides in found.values()]
    shown = Table(title="ms of a call", caption=f"geometric mean of the ratios: {gmean(ratios):.2f}")
    for heading in ("", "compiled", "generic", "ratio"):
        shown.add_column(heading, justify="right" if heading else "left")
    for (name, sides), ratio in zip(found.items(), ratios, strict=True):
        shown.add_row(name, *(f"{sides[side].median:.1f}" for side in ("compiled", "generic")), f"{ratio:.2f}")
    return shown


def main() -> None:
    """Measure, show, and write benchmarks/results/generic.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model, once, no JSON")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    names = list(cases())[: 1 if options.quick else None]
    found: dict[str, Any] = {
        name: measure(name, 1 if options.quick else options.rounds) for name in track(names, transient=True)
    }
    Console(width=120).print(table(found))
    if not options.quick:
        save("generic", {"models": found})


if __name__ == "__main__":
    main()
