"""What comes of one of ONNX's node tests: right, refused or wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import autocast
from autocast.errors import ImportModelError, InputError, UnsupportedError

#: Inputs, besides integers after the first, that models have as initializers.
_SAID_ONCE = {
    "BlackmanWindow": (0,),
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}

#: Operators whose inputs after the first are weights.
_WEIGHTED = frozenset(
    ("BatchNormalization", "Conv", "ConvTranspose", "DeformConv", "GRU", "LSTM", "RNN", "QLinearConv", "ConvInteger")
)

#: In which a node says axes, shapes and counts by inputs; models have them as initializers, and in the last form
#: all other sizes but those of 0 and 1 have names.
FORMS = ("inputs", "constants", "varying")


class Verdict(NamedTuple):
    """What came of a test: "right", "refused", "wrong" or "failed", and what there is to say of it."""

    status: str
    detail: str = ""


@cache
def cases() -> dict[str, Any]:
    """The node tests by their names, without those that expand operators into functions of others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, in the code that makes the tests
        found = collect_testcases(None)
    return {case.name: case for case in sorted(found, key=lambda case: case.name) if "_expanded" not in case.name}


def check(name: str, form: str) -> Verdict:
    """Import, compile and run a node test in one of FORMS; an error of the import or of its inputs is a refusal."""
    case = cases()[name]
    for inputs, expected in case.data_sets:
        given = [_array(value) for value in inputs]
        model, bound = _in_form(case.model, given, form)
        try:
            imported = autocast.from_onnx(model)
        except (ImportModelError, UnsupportedError) as error:
            return Verdict("refused", str(error))
        try:
            outputs = imported(*(array for array, is_bound in zip(given, bound, strict=True) if not is_bound))
        except InputError as error:
            return Verdict("refused", str(error))
        except Exception as error:  # also what is none of ours: the other tests go on
            return Verdict("failed", f"{type(error).__name__}: {error}")
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for got, wanted in zip(outputs, map(_array, expected), strict=True):
            if difference := _difference(got, wanted, max(case.rtol, 1e-3), max(case.atol, 1e-5)):
                return Verdict("wrong", difference)
    return Verdict("right")


def _array(value: Any) -> np.ndarray:
    if value is None or isinstance(value, list | dict):
        return np.empty((), object)  # a sequence, which no model takes
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _in_form(model: onnx.ModelProto, given: list[np.ndarray], form: str) -> tuple[onnx.ModelProto, list[bool]]:
    """The model with its integers after the first input as constants, if `form` says so, and which inputs these are."""
    said = saying(model, given)
    if form == "varying" and model.graph.node[0].op_type in _WEIGHTED:
        said |= set(range(1, len(given)))
    bound = [form != "inputs" and at in said for at in range(len(given))]
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    for value, array, is_bound in zip(model.graph.input, given, bound, strict=True):
        if is_bound:
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            copy.graph.input.append(value)
    if form == "varying":
        _vary(copy.graph)
    return copy, bound


def _vary(graph: onnx.GraphProto) -> None:
    """Give sizes names: those of inputs by how large they are, so that equal ones stay equal."""
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"s{dim.dim_value}"
    for value in graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"


def saying(model: onnx.ModelProto, given: list[np.ndarray]) -> set[int]:
    """Which inputs say axes, shapes and counts."""
    integers = {at for at, array in enumerate(given) if at > 0 and array.dtype.kind == "i"}
    names = [value.name for value in model.graph.input]
    node = model.graph.node[0]
    return integers | {
        names.index(node.input[at])
        for at in _SAID_ONCE.get(node.op_type, ())
        if at < len(node.input) and node.input[at] in names
    }


def _difference(got: Any, wanted: np.ndarray, rtol: float, atol: float) -> str:
    got = np.asarray(got)
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"{got.dtype}{list(got.shape)} in place of {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind not in "biu" and wanted.dtype.itemsize == 2:  # neighbours, after a few roundings
        rtol = max(rtol, 4 * float(ml_dtypes.finfo(wanted.dtype).eps))
    a, b = got.astype("float64"), wanted.astype("float64")
    return (
        ""
        if np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        else f"{a.ravel()[:4]} in place of {b.ravel()[:4]}"
    )


def verdicts(names: Sequence[str], forms: Sequence[str] = FORMS) -> Iterator[tuple[str, str, Verdict]]:
    """(name, form, verdict) of each; the form "constants" where a test has integers that it binds."""
    for name in names:
        for form in forms:
            case = cases()[name]
            if form != "constants" or saying(case.model, [_array(value) for value in case.data_sets[0][0]]):
                yield name, form, check(name, form)
