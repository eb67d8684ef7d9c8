"""The chosen casts beside the greedy ones: the same model, rules and kernels, only the places of the casts differ.

python -m benchmarks.plans [--quick]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.candidates import ours
from benchmarks.harness import Case, run
from benchmarks.models import work
from benchmarks.workload import MODELS

_MODELS = ("BERT-base 1 layer, 8 x 128", "GPT-2 small, 1 x 512", "ResNet-50, 4 images")


def cases(quick: bool) -> Iterator[Case]:
    """Mixed precision of each model, by the optimal and by the greedy solver."""
    for name in _MODELS[: 1 if quick else None]:
        make = MODELS[name]
        flops, weights, output = work(make)
        yield Case(
            name,
            partial(ours, make, low=True),
            {"greedy casts": partial(ours, make, low=True, solver="greedy")},
            target=1.0,
            dtype="bfloat16",
            flops=flops,
            bytes=weights / 2 + output,
        )


if __name__ == "__main__":
    run("plans", __doc__, cases)
