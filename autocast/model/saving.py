"""A model in one file: its module, parameters, report and names. Nothing in it is run when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import tvm
from tvm import relax

from autocast import operators  # noqa: F401  # defines the operators of our own, which modules may call
from autocast.collecting import without_garbage_collection
from autocast.container import Container, Format, LayoutError, as_entry
from autocast.errors import ArtifactError, IllFormedModuleError
from autocast.ir import dtype_of, static_shape
from autocast.ir.deserialize import from_data
from autocast.ir.serialize import SerializationError, to_data
from autocast.ir.well_formed import check_well_formed
from autocast.runtime.tensors import array_over, tensor_over

#: What a file of a model is marked with.
FORMAT = Format("autocast.model", 1, "Model.save", "autocast.load")

_MODULE, _CONSTANTS = "module.json", "constants.safetensors"
_PARAMETERS, _REPORT = "parameters.safetensors", "report.json"

#: Who knows the reports of a kind, by the names of their classes: they build on models.
_REPORTS = {"CastReport": "autocast.passes.casting.report"}


def parts_of(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries and the metadata of a Model's file.

    Raises
    ------
    ArtifactError
        Its module or its report has something that is no data.
    """
    try:
        entries = module_entries(model.mod)
    except SerializationError as error:
        raise ArtifactError(
            f"Model.save: {error}. Expected a module of expressions, PrimFuncs, tensors and plain attributes; keep the "
            "rest in Python, and add it again after autocast.load"
        ) from error
    first: dict[Any, str] = {}
    stored = {name: first.setdefault(_memory_of(tensor, name), name) for name, tensor in model.params.items()}
    parameters = {name: array_over(model.params[name]) for name in dict.fromkeys(stored.values())}
    entries[_PARAMETERS] = as_entry(parameters)
    if model.report is not None:
        entries[_REPORT] = _json(_report_data(model.report))
    metadata = {
        "parameters": list(stored.items()),
        "output_names": list(model.output_names),
        "frozen": sorted(model.frozen),
    }
    return entries, metadata


def module_entries(mod: tvm.IRModule) -> dict[str, Any]:
    """The entries of a module, which `module_in` reads; SerializationError where it has something that is no data."""
    with without_garbage_collection():
        data, constants = to_data(mod)
    arrays = {str(number): array_over(tensor) for number, tensor in enumerate(constants)}
    return {_MODULE: _json(data), _CONSTANTS: as_entry(arrays)}


def module_in(container: Container) -> tvm.IRModule:
    """The module of a file, none of which was run; ArtifactError where there is none."""
    with container.reading("its module"):
        constants = container.tensors(_CONSTANTS)
        try:
            tensors = [tensor_over(constants[str(number)]) for number in range(len(constants))]
            with without_garbage_collection():
                mod = from_data(_parsed(container, _MODULE), tensors)
            check_well_formed("autocast.load", mod, IllFormedModuleError)
        except (SerializationError, IllFormedModuleError, LookupError) as error:
            raise LayoutError(str(error)) from error
    return mod


def _memory_of(tensor: tvm.runtime.Tensor, name: str) -> Any:
    """The same for tensors that are one in memory, such as weights that are tied: they are stored once."""
    shape = tuple(tensor.shape)
    return (tensor.data_ptr(), shape, str(tensor.dtype)) if 0 not in shape else name


def _report_data(report: Any) -> dict[str, Any]:
    kind = type(report).__name__
    if kind not in _REPORTS:
        raise ArtifactError(
            f"Model.save: the model's report is a {kind}, expected None or one of {', '.join(_REPORTS)}; try "
            "model.replace(report=None).save(path)"
        )
    return {"kind": kind, "data": report.to_data()}


def fields_of(container: Container) -> dict[str, Any]:
    """The fields of the Model in a file, none of which was run; ArtifactError where they are none of a model."""
    mod = module_in(container)
    with container.reading("what it says of parameters and report"):
        stored = {name: tensor_over(array) for name, array in container.tensors(_PARAMETERS).items()}
        facts = container.metadata
        try:
            report = _parsed(container, _REPORT) if _REPORT in container.names else None
            return {
                "mod": mod,
                "params": {name: stored[place] for name, place in facts["parameters"]},
                "report": None if report is None else _reports(report["kind"]).from_data(report["data"]),
                "output_names": tuple(facts["output_names"]),
                "frozen": frozenset(facts["frozen"]),
            }
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(f"{type(error).__name__}: {error}") from error


def check_params(params: Mapping[str, tvm.runtime.Tensor], expected: Sequence[relax.Var]) -> None:
    """Raise LayoutError unless each parameter has the dtype and, where it is known, the shape that main says."""
    for (name, tensor), var in zip(params.items(), expected, strict=True):
        shape = static_shape(var)
        if str(tensor.dtype) != dtype_of(var) or (shape is not None and shape != tuple(tensor.shape)):
            raise LayoutError(f"the parameter {name} is {tensor.dtype}{list(tensor.shape)}, and main takes {var.ty}")


def _reports(kind: str) -> Any:
    """The class of the reports of a kind."""
    return getattr(import_module(_REPORTS[kind]), kind)


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()


def _parsed(container: Container, name: str) -> Any:
    try:
        return json.loads(bytes(container[name]))
    except (LookupError, ValueError, RecursionError) as error:
        raise LayoutError(f"the entry {name!r} is missing, or no JSON: {error}") from None
