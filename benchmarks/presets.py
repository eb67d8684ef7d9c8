"""Presets on eight architectures, bfloat16: casts, the MiB they move, latency, peak memory, error against float64.

python -m benchmarks.presets [--only BERT] [--rounds 5]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import autocast
from autocast import amp, vm
from autocast.demos.inference import relative_error
from autocast.policy import PRESETS
from benchmarks.counting import casts_in
from benchmarks.harness import PAUSE
from benchmarks.timing import Timing, alternate, save
from benchmarks.workload import ARCHITECTURES, Inputs

#: The figures of one preset on one model, by their headings in the table.
Figures = dict[str, Any]


def measure(module: torch.nn.Module, inputs: Inputs, rounds: int) -> dict[str, Figures]:
    """The figures of every preset on one model, by preset: the latencies are those of this many alternating rounds."""
    model = autocast.from_torch(module, inputs)
    with torch.no_grad():
        wide = [arg.double() if arg.is_floating_point() else arg for arg in inputs]
        expected = copy.deepcopy(module).double()(*wide)
    figures: dict[str, Figures] = {}
    calls: dict[str, Callable[[], object]] = {}
    for preset in PRESETS:
        amp_model = amp.autocast(model, policy=preset)
        casts, executable = casts_in(amp_model.mod), vm.compile(amp_model)
        calls[preset] = partial(executable, *inputs)
        figures[preset] = {
            "casts": casts.count,
            "MiB cast": casts.mebibytes,
            "peak MiB": vm.get_peak_memory(executable, "cpu", inputs),
            "error": relative_error(executable(*inputs), expected),
        }
    for preset, timing in alternate(calls, rounds=rounds, calls=4, pause=PAUSE).items():
        figures[preset]["latency"] = timing
    return figures


def table(name: str, figures: Mapping[str, Figures]) -> Table:
    """The figures of one model."""
    grid = Table("preset", title=name)
    for heading in ("casts", "MiB cast", "latency ms", "peak MiB", "error"):
        grid.add_column(heading, justify="right")
    for preset, of in figures.items():
        latency: Timing = of["latency"]
        cells = f"{of['casts']}", f"{of['MiB cast']:.1f}", f"{latency.median:.2f}", f"{of['peak MiB']:.1f}"
        grid.add_row(preset, *cells, f"{of['error']:.1e}")
    return grid


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a table for each model, and write `benchmarks/results/presets.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name holds this text; nothing is written")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds, of four calls of each preset")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    results: dict[str, dict[str, Figures]] = {}
    for name, make in ARCHITECTURES.items():
        if options.only in name:
            results[name] = measure(*make(), options.rounds)
            console.print(table(name, results[name]))
    if not options.only:
        console.print(f"written to {save('presets', {'models': results})}")


if __name__ == "__main__":
    main()
