"""Inference of whole models, float32 and mixed precision, beside torch eager, autocast and compile, and onnxruntime.

python -m benchmarks.models [--quick] [--only BERT] [--threads 1]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.candidates import Make, ours, peers
from benchmarks.harness import Case, run
from benchmarks.workload import MODELS

#: The part of the best peer's time that is our target: in mixed precision, in float32 beside torch, and beside
#: onnxruntime.
_TARGETS = {"ResNet-50": (0.75, 0.75, 0.75), "1 x 1": (0.7, 0.7, 0.7), "": (0.65, 0.34, 0.85)}

_QUICK = ("BERT-base 1 layer, 8 x 128",)


def work(make: Make) -> tuple[float, float, float]:
    """Floating-point operations of the products, bytes of the weights that they read, and bytes of the output."""
    module, inputs = make()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        output = module(*inputs)
    weights = {
        id(weight): weight.nbytes
        for layer in module.modules()
        if not isinstance(layer, torch.nn.Embedding)
        for weight in layer.parameters(recurse=False)
    }
    return float(counter.get_total_flops()), float(sum(weights.values())), float(output.nbytes)


def cases(quick: bool) -> Iterator[Case]:
    """Every model in both precisions."""
    for name, make in MODELS.items():
        if quick and name not in _QUICK:
            continue
        low, full, onnx = next(targets for part, targets in _TARGETS.items() if part in name)
        images = "images" in name
        flops, weights, output = work(make)
        yield Case(
            f"{name}, mixed",
            partial(ours, make, low=True),
            peers(make, low=True, images=images),
            target=low,
            dtype="bfloat16",
            flops=flops,
            bytes=weights / 2 + output,
        )
        yield Case(
            f"{name}, float32",
            partial(ours, make, low=False),
            peers(make, low=False, images=images),
            target=full,
            targets={"onnxruntime": onnx},
            flops=flops,
            bytes=weights + output,
        )


if __name__ == "__main__":
    run("models", __doc__, cases)
