"""Who generates kernels: a backend for each kind of target."""

from __future__ import annotations

import tvm

from autocast.kernels.backend import Backend
from autocast.kernels.targets.cpu.backend import Cpu
from autocast.kernels.targets.generic import Generic

#: By a key of TVM's targets; the first key of a target that is here decides.
BACKENDS: dict[str, type[Backend]] = {"generic": Generic, "cpu": Cpu}


def backend_of(target: tvm.target.Target) -> Backend:
    """The backend that generates kernels for `target`."""
    kind = next((BACKENDS[key] for key in map(str, target.keys) if key in BACKENDS), Generic)
    return kind(target)
