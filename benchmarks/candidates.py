"""Whole models, ready to call: by this project, by torch in all its modes, and by onnxruntime.

`make` is a function of a module (or a `functools.partial` of one) that returns a torch module and its inputs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.sides import Build, Call

Make = Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]


def ours(make: Make, *, low: bool, solver: str = "optimal") -> Call:
    """Compiled by this project, in mixed precision if `low`, with casts where `solver` puts them."""
    import autocast
    from autocast import amp, vm

    module, inputs = make()
    model = autocast.from_torch(module, inputs)
    executable = vm.compile(amp.autocast(model, solver=solver) if low else model)
    return lambda: executable(*inputs)


def torch_model(make: Make, *, low: bool, compiled: bool, channels_last: bool = False) -> Call:
    """By torch: eager or compiled with freezing, in float32 or under `torch.autocast` to bfloat16."""
    module, inputs = make()
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
        inputs = tuple(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs)
    if compiled:
        from torch._inductor import config

        config.freezing = True
        module = torch.compile(module)

    def call() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            return module(*inputs)

    return call


def onnx_model(make: Make) -> Call:
    """By onnxruntime, float32: it has no bfloat16 kernels for CPUs."""
    import onnxruntime

    module, inputs = make()
    file = io.BytesIO()
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(module, inputs, file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    feed = {spec.name: value.numpy() for spec, value in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def peers(make: Make, *, low: bool, images: bool = False) -> dict[str, Build]:
    """Everyone else that can run the model."""
    every: dict[str, Build] = {
        "torch: autocast" if low else "torch: eager": partial(torch_model, make, low=low, compiled=False)
    }
    if images:
        every |= {"torch: channels last": partial(torch_model, make, low=low, compiled=False, channels_last=True)}
    if not low:
        every |= {"onnxruntime": partial(onnx_model, make)}
    every |= {"torch: compile": partial(torch_model, make, low=low, compiled=True, channels_last=images)}
    return every
