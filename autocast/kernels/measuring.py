"""Measures the ways in which a kernel may compute a spec."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from autocast.kernels.backend import Backend
from autocast.kernels.found import HEURISTIC, Measured
from autocast.runtime import threads
from autocast.runtime.tensors import to_tensor

#: Seconds that a kernel runs between two looks at the clock, at least.
_LEAST = 1e-3

#: How often each way is measured, in turn; a time is the least of these.
_ROUNDS = 9

#: The standard deviation of inputs. Sums of thousands of their products are about one, as in models: the gelu of
#: numbers of a normal distribution's 768 products is mostly denormal, and takes ten times as long.
_SCALE = 0.1

#: A way is taken if it is faster by so much, and if it is again, by half of it, when it is measured beside the
#: heuristic's alone: otherwise chance would win among many.
_GAIN = 1.05


def measure(spec: Any, backend: Backend) -> Measured:
    """Microseconds of each way to compute `spec` on this machine, and which to take.

    Ways that come to the same kernel as the heuristic's are left out. Inputs are random numbers.
    """
    names = [HEURISTIC, *backend.ways(spec)]
    kernels = {name: backend.generate(spec, "kernel", way=name) for name in names}
    kernels = {
        name: kernel
        for name, kernel in kernels.items()
        if name == HEURISTIC or not tvm_ffi.structural_equal(kernel, kernels[HEURISTIC])
    }
    if len(kernels) == 1:
        return Measured({}, HEURISTIC)
    symbols = {name: f"kernel_{number}" for number, name in enumerate(kernels)}
    functions = {symbols[name]: kernel.with_attr("global_symbol", symbols[name]) for name, kernel in kernels.items()}
    compiled = tvm.compile(tvm.IRModule(functions), target=backend.target)
    arguments = _arguments(kernels[HEURISTIC])
    calls = {name: _bound(compiled[symbol], arguments) for name, symbol in symbols.items()}
    times = threads.call(_alternate, calls)
    best = min(times, key=lambda name: times[name])
    if times[HEURISTIC] < _GAIN * times[best]:
        return Measured(times, HEURISTIC)
    again = threads.call(_alternate, {name: calls[name] for name in (HEURISTIC, best)})
    return Measured(times, best if again[HEURISTIC] >= math.sqrt(_GAIN) * again[best] else HEURISTIC)


def _bound(function: Callable[..., Any], arguments: list[tvm_ffi.Tensor]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _alternate(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The least microseconds of each call."""
    counts, least = {}, dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        call()
        counts[name] = max(1, round(_LEAST / _seconds(call, 1)))
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            least[name] = min(least[name], _seconds(call, counts[name]) * 1e6)
    return least


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Seconds of one call, of so many."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def _arguments(kernel: tirx.PrimFunc) -> list[tvm_ffi.Tensor]:
    """Random numbers for a kernel's inputs, and places for its results."""
    random, arguments = np.random.default_rng(0), []

    def numbers(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, "float32") * np.float32(_SCALE)

    for param in kernel.params:
        shape, dtype = tuple(int(size) for size in param.ty.shape), str(param.ty.dtype)
        if dtype == "int32":  # pairs of bfloat16, packed
            arguments.append(to_tensor(numbers(*shape, 2).astype("bfloat16").view("int32")[..., 0].copy()))
        else:
            arguments.append(to_tensor(numbers(*shape).astype(dtype)))
    return arguments
