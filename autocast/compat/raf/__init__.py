"""RAF (github.com/awslabs/raf) in its words: a script of RAF's runs with `raf` replaced in its imports, and the device.

Models are torch modules or their imports; an array is a torch tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from autocast.compat.names import check_device, named
from autocast.compat.raf import _op as _op
from autocast.compat.raf import amp, frontend, ir, model, optim, testing, utils

__all__ = ["Device", "amp", "array", "cpu", "cuda", "device", "frontend", "ir", "model", "optim", "testing", "utils"]

_INSTEAD = {
    "Model": "a model is a torch module, imported by raf.frontend.from_pytorch(module, shapes)",
    "hybrid": "a model is a torch module, imported by raf.frontend.from_pytorch(module, shapes)",
    "distributed": "models run on one machine",
    "ndarray": "an array is a torch tensor; raf.array makes one",
}


__getattr__ = named(__name__, __all__, instead=_INSTEAD)


def Device(device_str: str) -> str:
    """The device of this name, which is "cpu"; UnsupportedError for any other."""
    check_device(device_str, "device")
    return "cpu"


device = Device


def cpu(device_id: int = 0) -> str:
    """The device "cpu"."""
    return Device(f"cpu({device_id})")


def cuda(device_id: int = 0) -> str:
    """UnsupportedError: models run on the CPU."""
    return Device(f"cuda({device_id})")


def array(value: Any, *, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
    """A torch tensor of numbers, of a numpy array (whose memory it shares where it can) or of a tensor."""
    check_device(device, "device")
    tensor = torch.as_tensor(value)
    return tensor if dtype is None else tensor.to(getattr(torch, dtype))
