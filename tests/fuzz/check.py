"""Compiles a module and compares its results with the interpreter's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

import autocast
from autocast import amp as mixed
from autocast.errors import (
    AutocastError,
    CastErasureError,
    CastingRuleError,
    CompileError,
    IllFormedModuleError,
    UnknownOperatorError,
)
from autocast.model import Model
from tests.fuzz.interpreter import Interpreter, Unknown
from tests.fuzz.values import Tensor, is_float

#: Bounds are of the first order, and a kernel may round a little more often than the interpreter thinks.
_FACTOR = 4.0


@dataclass(frozen=True)
class Outcome:
    """What came of a module.

    Attributes
    ----------
    kind
        "right", "wrong" (numbers, shapes or dtypes), "refused" (an error raised on purpose), "raw" (any other error),
        "unknown" (the interpreter cannot say), "ill-formed" (TVM does not take the module).
    detail
        What differs, or the error's text.
    stage
        "import", "autocast", "compile" or "run", where there was an error.
    compared
        How many elements were compared; the rest were not determined.
    """

    kind: str
    detail: str = ""
    stage: str = ""
    compared: int = 0

    @property
    def bad(self) -> bool:
        """Whether it is a failure."""
        return self.kind in ("wrong", "raw", "crashed")

    @property
    def signature(self) -> str:
        """What stays the same while a module is shrunk: the kind, and the error's last line without its numbers."""
        if self.kind == "wrong":
            return "wrong values" if "elements are wrong" in self.detail else "wrong types"
        lines = [line for line in self.detail.splitlines() if line.strip() and "^^" not in line]
        text = lines[-1] if lines else ""
        return f"{self.kind} {self.stage} {re.sub(r'[0-9]+|0x[0-9a-f]+', '#', text)[:160]}"


def tensors(arguments: Sequence[np.ndarray], dtypes: Sequence[str]) -> list[Tensor]:
    """Arguments for the interpreter."""
    return [
        Tensor.exact(value.astype(np.float64) if is_float(dtype) else value, dtype)
        for value, dtype in zip(arguments, dtypes, strict=True)
    ]


def differences(got: Any, expected: Any, where: str = "result") -> tuple[str, int]:
    """What is wrong with a result, or "", and how many elements were compared."""
    if isinstance(expected, tuple) and not isinstance(expected, Tensor):
        if not hasattr(got, "__len__") or hasattr(got, "numpy") or len(got) != len(expected):
            return f"{where}: got a {type(got).__name__}, expected {len(expected)} values", 0
        compared = 0
        for i, (part, value) in enumerate(zip(got, expected, strict=True)):
            if isinstance(value, int):
                text, count = ("" if int(part) == value else f"{where}[{i}] is {part}, expected {value}"), 1
            else:
                text, count = differences(part, value, f"{where}[{i}]")
            if text:
                return text, 0
            compared += count
        return "", compared
    if not isinstance(expected, Tensor):
        return "", 0
    array = got.numpy() if hasattr(got, "numpy") else got  # without inputs, outputs are numpy's
    if not isinstance(array, np.ndarray):
        return f"{where}: got a {type(got).__name__}, expected a tensor", 0
    if (str(array.dtype), array.shape) != (expected.dtype, expected.shape):
        return f"{where}: got {array.dtype}{array.shape}, expected {expected.dtype}{expected.shape}", 0
    number = array.astype(np.float64)
    exact = expected.value.astype(np.float64)
    allowed = _FACTOR * expected.error
    sure = np.isfinite(exact) & np.isfinite(allowed)
    if expected.dtype == "bool":
        sure &= expected.error == 0
    with np.errstate(invalid="ignore"):
        off = np.abs(number - exact)
    bad = sure & ~(off <= allowed)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        return (
            f"{where}: {int(bad.sum())} of {bad.size} elements are wrong; at {at} it is {number[at]!r}, expected "
            f"{exact[at]!r}, off by {off[at]:.3g}, allowed {allowed[at]:.3g}",
            0,
        )
    return "", int(sure.sum())


def check(
    mod: tvm.IRModule,
    arguments: Sequence[np.ndarray],
    dtypes: Sequence[str],
    parameters: int,
    amp: str | None,
    prepare: Callable[[Model], Callable[..., Any]],
    options: dict[str, Any] | None = None,
) -> Outcome:
    """Run a module, as it is or after AutoCast to `amp`, and compare what it gives with the interpreter.

    Parameters
    ----------
    arguments, dtypes
        Of `main`: its inputs, and then its `parameters` parameters.
    prepare
        Makes what runs a model.
    options
        More fields of AutoCast's policy.
    """
    try:
        interpreter = Interpreter(mod, amp)
        expected = interpreter.main([interpreter.stored(tensor) for tensor in tensors(arguments, dtypes)])
    except Unknown as reason:
        return Outcome("unknown", str(reason))
    stage = "import"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = len(arguments) - parameters
            model = autocast.from_relax(mod, list(arguments[first:]) or None)
            stage = "autocast"
            if amp is not None:
                model = mixed.autocast(model, dtype=amp, **(options or {}))
            stage = "compile"
            run = prepare(model)
            stage = "run"
            result = run(*arguments[:first])
    except (AutocastError, CastingRuleError, UnknownOperatorError) as error:
        # The module is well formed, and what cannot be compiled is refused before any phase fails.
        fault = isinstance(error, CompileError | IllFormedModuleError | CastErasureError)
        return Outcome("raw" if fault else "refused", f"{type(error).__name__}: {error}", stage)
    except Exception as error:
        return Outcome("raw", f"{type(error).__name__}: {error}", stage)
    text, compared = differences(result, expected)
    return Outcome("wrong", text) if text else Outcome("right", compared=compared)
