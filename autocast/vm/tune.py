"""Measure which way to compute the kernels of models is the fastest, and what that wins: `autocast tune`."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from autocast import kernels
from autocast.kernels.found import HEURISTIC
from autocast.model.value import Model
from autocast.runtime.executable import Executable
from autocast.runtime.sizes import evaluate
from autocast.vm.compile import compile, source_of
from autocast.vm.finding import Finding, find
from autocast.vm.warm import cases_of, models_of

#: What symbolic dimensions are while models are timed, if their bounds allow it.
_SIZE = 8

#: Calls that a time of a model is the median of, and about how many seconds they may take.
_CALLS, _SECONDS = 20, 5.0

#: The share of its time before that a model takes at most where kernels won enough to see.
_SHOWS = 0.99


class Tuned(NamedTuple):
    """One model: the arguments that it was made with, what was measured, and its milliseconds before and after."""

    arguments: Mapping[str, int]
    findings: tuple[Finding, ...]
    before: float
    after: float

    @property
    def won(self) -> bool:
        """Whether a way was found that is faster than the heuristic's."""
        return any(finding.measured.winner != HEURISTIC for finding in self.findings)


def tune(name: str, batches: Sequence[int], lengths: Sequence[int]) -> list[Tuned]:
    """Call a function for each batch with each length, and measure the kernels of the models that it returns.

    The times are kept; whatever is compiled for this machine from now on goes by them.

    Parameters
    ----------
    name, batches, lengths
        As `warm` takes them.

    Raises
    ------
    InputError
        There is no such function, or it takes or returns something else.
    UnsupportedError
        The times cannot be kept.
    """
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    return [
        _tuned(model, arguments)
        for arguments in cases_of(name, batches, lengths)
        for model in models_of(name, arguments)
    ]


def _tuned(model: Model, arguments: Mapping[str, int]) -> Tuned:
    before = compile(model)
    findings = find(source_of(model.mod, model.params, kernels.detect_target(), 3)[0], again=True, shown=_progress)
    after = compile(model.replace())
    inputs = _inputs(before)
    times: dict[Executable, list[float]] = {before: [], after: []}
    for executable in times:
        executable(*inputs)
    until = time.perf_counter() + _SECONDS
    while len(times[after]) < _CALLS and (time.perf_counter() < until or not times[after]):
        for executable, measured in times.items():
            started = time.perf_counter()
            executable(*inputs)
            measured.append((time.perf_counter() - started) * 1e3)
    return Tuned(arguments, findings, *(statistics.median(measured) for measured in times.values()))


def _progress(specs: list[Any]) -> Iterable[Any]:
    return track(specs, description="measuring kernels", console=Console(stderr=True, emoji=False), transient=True)


def _inputs(executable: Executable) -> list[np.ndarray]:
    """Random numbers for a model's floats, and zeros for all else, which are legal token ids."""
    signature, random = executable.signature, np.random.default_rng(0)
    names = {size for spec in signature.inputs for size in spec.shape if isinstance(size, str)}
    sizes = {
        name: min(max(_SIZE, signature.lower_bounds.get(name, 1)), signature.upper_bounds.get(name, sys.maxsize))
        for name in names
    }
    arrays = []
    for spec in signature.inputs:
        shape = [evaluate(size, sizes) or 0 for size in spec.shape]
        array = random.standard_normal(shape) if "float" in spec.dtype else np.zeros(shape)
        arrays.append(array.astype(spec.dtype))
    return arrays


def tables(results: Sequence[Tuned]) -> Iterable[Table | str]:
    """What was won by each model, kernel by kernel; or that there was nothing to win."""
    seen: Counter[str] = Counter()
    for result in results:
        called = ", ".join(f"{name} {value}" for name, value in result.arguments.items()) or "the model"
        seen[called] += 1
        called += f", model {seen[called]}" if seen[called] > 1 else ""
        if not result.findings:
            yield (
                f"{called}: nothing to measure. There are several ways for products, convolutions and attention whose "
                "sizes are known, and it has none."
            )
            continue
        ways = sum(len(finding.measured.times) for finding in result.findings)
        if not result.won:
            yield (
                f"{called}: nothing to win. {ways} ways to compute {len(result.findings)} kernels were measured, and "
                "none is faster than the one that is chosen without measuring."
            )
            continue
        shown = Table(title=f"{called}: {result.before:.2f} ms before, {result.after:.2f} ms now")
        for heading in ("kernel", "us before", "us now", "way", "speedup"):
            shown.add_column(heading, justify="left" if heading in ("kernel", "way") else "right", overflow="fold")
        for spec, (times, winner) in sorted(result.findings, key=lambda finding: -_speedup(finding)):
            if winner != HEURISTIC:
                gain = f"{times[HEURISTIC] / times[winner]:.2f}"
                shown.add_row(_brief(spec), f"{times[HEURISTIC]:.1f}", f"{times[winner]:.1f}", winner, gain)
        yield shown
        if result.after > _SHOWS * result.before:
            yield (
                f"{called}: the model itself is not faster by that. What ran beside the measurements may have slowed "
                "the other ways; tune it again with nothing beside it, which replaces what is kept."
            )


def _brief(spec: Any) -> str:
    """A spec with those of its fields alone that are not what they are by default."""
    parts = [
        f"{field.name}={_brief(value) if is_dataclass(value) else value}"
        for field in fields(spec)
        if (value := getattr(spec, field.name)) != field.default and value != _made_by_default(field)
    ]
    return f"{type(spec).__name__}({', '.join(parts)})"


def _made_by_default(field: Field[Any]) -> Any:
    return MISSING if field.default_factory is MISSING else field.default_factory()


def _speedup(finding: Finding) -> float:
    times = finding.measured.times
    return times[HEURISTIC] / times.get(finding.measured.winner, math.inf) if times else 1.0
