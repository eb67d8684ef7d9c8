"""What runs a module: kernels of ours, compiled mostly quickly, or torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
import tvm

import autocast
from autocast import vm
from autocast.kernels import detect_target
from autocast.model import Model

#: Makes of a model, and of the seed of its module, what takes arrays and returns tensors, or tuples of them.
Backend = Callable[[Model, int], Callable[..., Any]]

#: Kernels are cut into tasks for so many threads: for more than there are, on most machines.
_CORES = (1, 1, 2, 7, 16)


@cache
def target(seed: int) -> tvm.target.Target:
    """What a module of this seed is compiled for: mostly quickly, at times as a user does."""
    machine, random = detect_target(), Random(seed)
    chosen = random.randrange(10)
    if chosen == 0:
        return machine
    options = {name: machine.attrs[name] for name in ("mcpu", "mattr") if name in machine.attrs}
    if chosen == 1 and "x86" in tvm.target.codegen.llvm_get_system_triple():
        options = {"mcpu": "x86-64-v3"}
    return tvm.target.Target({"kind": "llvm", **options, "num-cores": random.choice(_CORES), "opt-level": 0})


def kernels(model: Model, seed: int) -> Callable[..., Any]:
    """Compiled by `vm.compile`."""
    executable = vm.compile(model, target=target(seed % 10))
    return lambda *arrays: executable(*map(tvm.runtime.tensor, arrays))


def torch(model: Model, seed: int) -> Callable[..., Any]:
    """Computed by torch, operator by operator, as `to_torch` writes it; nothing is compiled."""
    from torch import Tensor, no_grad

    from autocast.runtime.tensors import from_tensor, to_tensor

    module = autocast.to_torch(model)

    def converted(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(converted, value))
        return to_tensor(value.detach()) if isinstance(value, Tensor) else value

    def run(*arrays: np.ndarray) -> Any:
        with no_grad():
            return converted(module(*(from_tensor(tvm.runtime.tensor(array), "torch") for array in arrays)))

    return run


#: By the name that `python -m tests.fuzz --target` takes.
BACKENDS: dict[str, Backend] = {"cpu": kernels, "torch": torch}

__all__ = ["BACKENDS", "Backend"]
