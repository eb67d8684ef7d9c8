"""MXNet, of which mixed precision is here: `from autocast.compat.mxnet import amp`."""

from __future__ import annotations

from autocast.compat.mxnet import amp, contrib
from autocast.compat.names import named

__all__ = ["amp", "contrib"]

_ARRAYS = "arrays are numpy's or torch tensors"
_INSTEAD = {
    "autograd": "the step of an autocast.training.Trainer differentiates",
    "cpu": "a device is the text 'cpu'",
    "gluon": "layers are those of torch modules, and autocast.training.Trainer trains them",
    "gpu": "models are compiled for CPUs: device='cpu'",
    "nd": _ARRAYS,
    "np": _ARRAYS,
    "npx": _ARRAYS,
    "sym": "a symbol is a Relax module: tvm.script",
    "symbol": "a symbol is a Relax module: tvm.script",
    **{name: f"it is mxnet.amp.{name}" for name in amp.__all__},
}

__getattr__ = named(__name__, __all__, instead=_INSTEAD)
