"""200 calls of sizes that were never seen: what each takes, compilations included, beside torch.compile.

    python -m benchmarks.unknown_sizes [--quick] [--only BERT]

bfloat16 mixed precision on all sides, each in a process of its own, one after another, with empty caches. The first
call of each side has its import and compilation in it. Ours is one program whose dimensions are declared dynamic; for
some of the sizes it is timed beside a program that was compiled for that size alone, in turn.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.convergence_workloads import DOCS
from benchmarks.sides import Side
from benchmarks.timing import save

#: Sizes of which ours is timed beside a program of that size alone, and calls of each.
_STATIC, _CALLS = 4, 15

_COLOURS = {"ours": "#1f6feb", "torch.compile": "#2da44e", "torch.compile, dynamic": "#bf3989", "torch": "#8b949e"}


class Head(nn.Module):
    """A detector's head over the regions of an image, as many as were proposed."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Flatten(), nn.Linear(12544, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.classes, self.boxes = nn.Linear(1024, 91), nn.Linear(1024, 364)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(regions, 256, 7, 7) to (regions, 91) and (regions, 364)."""
        x = self.shared(x)
        return self.classes(x), self.boxes(x)


class Block(nn.Module):
    """A layer of a text-to-speech model: attention, and convolutions along the length."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide, self.narrow = nn.Conv1d(width, 4 * width, 9, padding=4), nn.Conv1d(4 * width, width, 1)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, length, 256) to the same."""
        x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.second(x + self.narrow(torch.relu(self.wide(x.mT))).mT)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=4), add_pooling_layer=False)


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig())


class Workload(NamedTuple):
    """A module, the dtype of its input, its shape for given sizes, and the bounds of these."""

    make: Callable[[], nn.Module]
    dtype: torch.dtype
    shape: Callable[..., tuple[int, ...]]
    bounds: Mapping[str, tuple[int, int]]
    axes: Mapping[str, int]

    def sizes(self, count: int) -> list[tuple[int, ...]]:
        """Different sizes, none of them twice."""
        random, found = np.random.default_rng(0), dict[tuple[int, ...], None]()
        while len(found) < count:
            found[tuple(int(random.integers(low, high + 1)) for low, high in self.bounds.values())] = None
        return list(found)

    def input(self, sizes: tuple[int, ...]) -> torch.Tensor:
        """An input of these sizes."""
        shape = self.shape(*sizes)
        return torch.randint(0, 1000, shape) if self.dtype == torch.int64 else torch.randn(shape)

    def module(self) -> nn.Module:
        """The module, the same in each process."""
        torch.manual_seed(0)
        return self.make().eval()


WORKLOADS = {
    "BERT, batch and length": Workload(
        _bert, torch.int64, lambda b, n: (b, n), {"batch": (1, 8), "length": (2, 128)}, {"batch": 0, "length": 1}
    ),
    "ResNet-50, height and width": Workload(
        _resnet,
        torch.float32,
        lambda h, w: (1, 3, h, w),
        {"height": (64, 320), "width": (64, 320)},
        {"height": 2, "width": 3},
    ),
    "region head, proposals": Workload(
        Head, torch.float32, lambda n: (n, 256, 7, 7), {"proposals": (1, 1000)}, {"proposals": 0}
    ),
    "text to speech, length": Workload(
        lambda: nn.Sequential(*(Block() for _ in range(4))),
        torch.float32,
        lambda n: (1, n, 256),
        {"length": (2, 800)},
        {"length": 1},
    ),
}


def _called(call: Callable[[torch.Tensor], Any], workload: Workload, count: int) -> dict[str, Any]:
    """Milliseconds of each call, and the MiB by which the process grew after the first tenth of them."""
    milliseconds, resident = [], []
    for sizes in workload.sizes(count):
        x = workload.input(sizes)
        started = time.perf_counter()
        call(x)
        milliseconds.append((time.perf_counter() - started) * 1e3)
        resident.append(int(re.split(r"\s+", Path("/proc/self/statm").read_text())[1]) * os.sysconf("SC_PAGESIZE"))
    return {"ms": milliseconds, "grown MiB": (resident[-1] - resident[count // 10]) / 2**20}


def ours(name: str, count: int) -> dict[str, Any]:
    """One program for all sizes; beside it, for some, one of that size alone."""
    import autocast
    from autocast import amp, vm

    workload = WORKLOADS[name]
    module = workload.module()

    def compiled(example: torch.Tensor, dynamic: Any) -> Any:
        return vm.compile(amp.autocast(autocast.from_torch(module, (example,), dynamic=dynamic)))

    made: list[Any] = []

    def call(x: torch.Tensor) -> Any:
        if not made:
            dynamic = {dimension: (0, axis, *workload.bounds[dimension]) for dimension, axis in workload.axes.items()}
            made.append(compiled(workload.input(tuple(high for _, high in workload.bounds.values())), dynamic))
        return made[0](x)

    figures = _called(call, workload, count)
    figures["beside static"] = []
    for sizes in workload.sizes(count)[:: max(1, count // _STATIC)][:_STATIC]:
        x = workload.input(sizes)
        sides = made[0], compiled(x, None)
        times: list[list[float]] = [[], []]
        for _ in range(_CALLS):
            for side, found in zip(sides, times, strict=True):
                started = time.perf_counter()
                side(x)
                found.append(time.perf_counter() - started)
        figures["beside static"].append(statistics.median(times[0][3:]) / statistics.median(times[1][3:]))
    return figures


def torchs(name: str, count: int, compile: Mapping[str, Any] | None) -> dict[str, Any]:
    """torch.compile with these options, or torch's operators one by one."""
    workload = WORKLOADS[name]
    module: Any = workload.module()
    called = module if compile is None else torch.compile(module, **compile)

    def call(x: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return called(x)

    return _called(call, workload, count)


SIDES: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "ours": ours,
    "torch.compile": partial(torchs, compile={}),
    "torch.compile, dynamic": partial(torchs, compile={"dynamic": True}),
    "torch": partial(torchs, compile=None),
}


def table(name: str, figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row for each side."""
    count = len(next(iter(figures.values()))["ms"])
    beside = figures["ours"]["beside static"]
    caption = f"ours beside programs of one size: {min(beside):.2f} to {max(beside):.2f} of their time"
    shown = Table(title=f"{name}: {count} sizes", caption=caption)
    for heading in ("", "all, s", "first, s", "slowest other, ms", "median, ms", "grown, MiB"):
        shown.add_column(heading, justify="right" if heading else "left")
    for side, found in figures.items():
        first, *rest = found["ms"]
        cells = sum(found["ms"]) / 1e3, first / 1e3, max(rest), statistics.median(rest), found["grown MiB"]
        shown.add_row(side, *(f"{cell:.1f}" for cell in cells))
    return shown


def plot(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Path:
    """Write `docs/unknown_sizes.svg`: seconds that the calls took until each."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no date, and names from a fixed salt.
    matplotlib.rcParams.update({"svg.hashsalt": "autocast", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(8, 6), layout="constrained")
    for axes, (name, figures) in zip(grid.flat, found.items(), strict=False):
        for side, one in figures.items():
            calls = np.arange(len(one["ms"])) + 1
            axes.plot(calls, np.array(one["ms"]), color=_COLOURS[side], label=side, linewidth=0.9)
        axes.set(title=name, xlabel="call", ylabel="ms", yscale="log")
        axes.grid(alpha=0.25, which="both")
    grid.flat[0].legend(frameon=False, fontsize=8)
    path = DOCS / "unknown_sizes.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    # Matplotlib ends the lines of paths with a space.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path


def main() -> None:
    """Measure, show, and write benchmarks/results/unknown_sizes.json and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 sizes, and nothing is written")
    parser.add_argument("--only", default="", help="workloads with this in their names")
    options = parser.parse_args()
    count = 12 if options.quick else 200
    os.environ |= {"AUTOCAST_CACHE": "off", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in WORKLOADS if options.only in name):
        found[name] = {}
        for side, run in SIDES.items():
            process = Side(side, os.cpu_count() or 1)
            found[name][side] = process.compute(partial(run, name, count))
            process.close()
        Console().print(table(name, found[name]))
    if not options.quick and not options.only:
        save("unknown_sizes", found)
        Console().print(f"drawn: {plot(found)}")


if __name__ == "__main__":
    main()
