"""Judge a sample as an ONNX file: does onnxruntime compute of it what torch computes?"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import autocast
from autocast.errors import AutocastError, CastingRuleError, ImportModelError
from autocast.frontend import from_torch
from autocast.frontend.importing.randomness import RANDOM_STATE
from tests.opinfo.check import Status, Verdict, copies, difference, line, tensors_of, wide
from tests.opinfo.samples import Sample


def check_onnx(sample: Sample) -> Verdict:
    """Of a file for all sizes, where the sample can be imported for them, made with other sizes than the sample's.

    Refused is also what onnxruntime has no kernels for. Skipped is what torch does not compute, and what is random.
    """
    import onnxruntime

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            expected = tensors_of(copy.deepcopy(sample.module)(*copies(sample)))
        except Exception as error:
            return Verdict(Status.SKIPPED, f"torch: {line(error)}")
        try:
            model = _imported(sample)
            if RANDOM_STATE in model.params or not sample.defined or not expected:
                return Verdict(Status.SKIPPED, "it is random, or returns no tensor")
            with tempfile.TemporaryDirectory() as folder:
                file = autocast.to_onnx(model, Path(folder) / "sample.onnx").read_bytes()
        except (AutocastError, CastingRuleError) as error:
            return Verdict(Status.REFUSED, line(error))
        except Exception as error:
            return Verdict(Status.CRASHED, f"{type(error).__name__}: {line(error)}")
        try:
            session = onnxruntime.InferenceSession(file, _silent(), providers=["CPUExecutionProvider"])
        except Exception as error:
            unknown = any(word in str(error) for word in ("NOT_IMPLEMENTED", "Type Error", "INVALID_GRAPH"))
            return Verdict(Status.REFUSED if unknown else Status.CRASHED, f"onnxruntime: {line(error)}")
        try:
            given = {one.name: x.numpy() for one, x in zip(session.get_inputs(), copies(sample), strict=True)}
            got = [torch.from_numpy(y) for y in session.run(None, given)]
        except Exception as error:
            unknown = "No corresponding Numpy type" in str(error)
            return Verdict(Status.REFUSED if unknown else Status.CRASHED, f"onnxruntime: {line(error)}")
        try:
            exact = tensors_of(copy.deepcopy(sample.module).double()(*map(wide, copies(sample))))
        except Exception:
            exact = expected
        for ours, wanted, true in zip(got, expected, exact, strict=True):
            if (ours.dtype, ours.shape) != (wanted.dtype, wanted.shape):
                return Verdict(Status.WRONG, f"{ours.dtype} {ours.shape}, expected {wanted.dtype} {wanted.shape}")
            if off := difference(ours, wanted, true):
                return Verdict(Status.WRONG, off)
        return Verdict(Status.RIGHT)


def _imported(sample: Sample) -> Any:
    """For all sizes, equal ones of one name, where that can be; sizes of 1 may be those that are broadcast."""
    axes: dict[str, list[tuple[int, int]]] = {}
    for at, x in enumerate(sample.tensors):
        for axis, size in enumerate(x.shape):
            if size > 1:
                axes.setdefault(f"s{size}", []).append((at, axis))
    if axes:
        with contextlib.suppress(ImportModelError):
            return from_torch(copy.deepcopy(sample.module), copies(sample), dynamic=axes)
    return from_torch(copy.deepcopy(sample.module), copies(sample))


def _silent() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options
