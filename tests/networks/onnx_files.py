"""Random networks as ONNX files: those of torch's exporters imported, and those that `to_onnx` makes run elsewhere."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import nn

import autocast
from autocast import vm
from autocast.frontend import from_torch
from autocast.torch_target.onnx_operators import operators_read_once
from tests.networks.generate import DYNAMIC, SIZES, Network, inputs

_Run = Callable[[Mapping[str, torch.Tensor]], list[torch.Tensor]]


def imported_file(network: Network, traced: bool) -> _Run | None:
    """What `from_onnx` makes of a file by torch's exporter, or its older one, that traces; None if that is wrong."""
    try:
        file = _exported(network, traced)
        theirs = _in_onnxruntime(file)
        for sizes in SIZES:
            exact = network.module().eval().double()(**inputs(sizes, torch.float64))
            for one, true in zip(theirs(inputs(sizes)), exact, strict=True):
                torch.testing.assert_close(one.double(), true.double(), rtol=1e-3, atol=1e-3)
    except Exception:
        return None
    model = autocast.from_onnx(file)
    run, names = vm.compile(model), model.input_names
    return lambda given: _listed(run(*(given[name] for name in names)))


def written_file(network: Network) -> _Run:
    """The file that `to_onnx` makes of a network that was imported for all sizes, in onnxruntime."""
    model = from_torch(network.module().eval(), tuple(inputs(SIZES[0]).values()), dynamic=DYNAMIC)
    with tempfile.TemporaryDirectory() as folder:
        return _in_onnxruntime(onnx.load(autocast.to_onnx(model, Path(folder) / "network.onnx")))


def _exported(network: Network, traced: bool) -> Any:
    given, file = inputs(SIZES[0]), io.BytesIO()
    axes = {name: {axis: dim for dim, places in DYNAMIC.items() for at, axis in places if at == name} for name in given}
    how: dict[str, Any] = (
        {"dynamic_axes": axes, "dynamo": False, "opset_version": 17}
        if traced
        else {
            "dynamic_shapes": {name: dict.fromkeys(dims, torch.export.Dim.AUTO) for name, dims in axes.items()},
            "dynamo": True,
            "verbose": False,
        }
    )
    with warnings.catch_warnings(), operators_read_once():
        warnings.simplefilter("ignore")  # of both exporters, about themselves
        module: nn.Module = network.module().eval()
        torch.onnx.export(module, tuple(given.values()), file, input_names=list(given), **how)
    return onnx.load_from_string(file.getvalue())


def _in_onnxruntime(model: Any) -> _Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda given: [torch.from_numpy(y) for y in session.run(None, {name: given[name].numpy() for name in names})]


def _listed(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, tuple) else [results]
