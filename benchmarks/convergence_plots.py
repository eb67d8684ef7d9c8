"""Curves of `benchmarks.convergence` as SVG: the mean over seeds, and between what they lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.convergence_workloads import DOCS

if TYPE_CHECKING:
    from benchmarks.convergence import Runs

_COLOURS = {"float32": "#1f6feb", "bfloat16": "#2da44e", "float16": "#bf3989"}
_STYLES: Mapping[str, Mapping[str, object]] = {
    "ours": {"linestyle": "-", "linewidth": 1.6},
    "torch": {"linestyle": ":", "linewidth": 2.2},
}


def plot(name: str, runs: Runs, point: int) -> Path:
    """Write `docs/training_NAME.svg`, a point for every `point` steps; returns its path."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no date, and names from a fixed salt.
    matplotlib.rcParams.update({"svg.hashsalt": "autocast", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for (side, precision), found in runs.items():
        curves = np.array([run.losses for run in found])
        steps = (np.arange(curves.shape[1]) + 1) * point
        colour = _COLOURS[precision]
        axes.plot(steps, curves.mean(axis=0), color=colour, label=f"{side}, {precision}", **_STYLES[side])
        if side == "ours":
            axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12, linewidth=0)
    axes.set(title=name, xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.25, which="both")
    axes.legend(ncols=2, frameon=False)
    path = DOCS / f"training_{re.match('[A-Za-z0-9-]+', name)[0].lower().replace('-', '')}.svg"  # type: ignore[index]
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    # Matplotlib ends the lines of paths with a space.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path
