"""What a caller says of a model's inputs: which dimensions vary, and which inputs are constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autocast.errors import ImportModelError
from autocast.messages import check_kind, is_count

_SPELLING = (
    'dynamic={"batch": ("input", 0, 1, 64)} (name: input, axis, minimum, maximum), a list of such tuples, or the size '
    "that a dimension of this name always has"
)


def make_dynamic(graph: onnx.GraphProto, dynamic: Mapping[str, Any] | None) -> dict[str, tuple[int, int | None]]:
    """Name the dimensions of inputs that `dynamic` says; their bounds, by name."""
    check_kind("from_onnx: dynamic", dynamic, Mapping | None, ImportModelError, _SPELLING)
    inputs = {value.name: value for value in graph.input}
    bounds: dict[str, tuple[int, int | None]] = {}
    for name, rows in (dynamic or {}).items():
        if is_count(rows):
            _fix(graph, name, rows)
            continue
        for row in rows if isinstance(rows, list) else [rows]:
            legal = isinstance(row, tuple) and 2 <= len(row) <= 4 and row[0] in inputs and isinstance(row[1], int)
            dims = inputs[row[0]].type.tensor_type.shape.dim if legal else ()
            if not legal or not str(name).isidentifier() or not 0 <= row[1] < len(dims):
                raise ImportModelError(
                    f"from_onnx: dynamic[{name!r}] is {row!r}; expected {_SPELLING}. The inputs are {', '.join(inputs)}"
                )
            dims[row[1]].dim_param = name
            if len(row) == 4 and is_count(row[2]) and row[2] == row[3]:
                dims[row[1]].dim_value = row[2]
            elif len(row) > 2:
                bounds[name] = _bounds(name, row)
    if dynamic:
        del graph.value_info[:]  # of operators that ONNX does not infer: they say the sizes that were
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
    return bounds


def _bounds(name: str, row: tuple[Any, ...]) -> tuple[int, int | None]:
    """The minimum, 0 where it is left out, and the maximum, None where it is."""
    lower, upper = row[2] or 0, row[3] if len(row) == 4 else None
    if not is_count(lower) or (upper is not None and not (is_count(upper) and upper >= lower)):
        raise ImportModelError(
            f"from_onnx: dynamic[{name!r}] is {row!r}; expected {_SPELLING}. Minimum and maximum are whole numbers, "
            "or None where there is none"
        )
    return lower, upper


def _fix(graph: onnx.GraphProto, name: str, size: int) -> None:
    """Give the inputs' dimensions that are called `name` a size."""
    if not size:
        raise ImportModelError(
            f"from_onnx: dynamic[{name!r}] is 0; expected a size of at least 1, as 0 says in ONNX that it varies"
        )
    shapes = [value.type.tensor_type.shape for value in graph.input if value.type.HasField("tensor_type")]
    names = [dim.dim_param for shape in shapes for dim in shape.dim if dim.dim_param]
    if name not in names:
        raise ImportModelError(
            f"from_onnx: dynamic[{name!r}] is {size}, but no input has a dimension of this name; expected {_SPELLING}. "
            f"The dimensions that have names are: {', '.join(dict.fromkeys(names)) or 'none'}"
        )
    for dim in (dim for shape in shapes for dim in shape.dim if dim.dim_param == name):
        dim.dim_value = size


def make_constant(graph: onnx.GraphProto, constants: Mapping[str, Any] | None) -> None:
    """Give the inputs that `constants` names their values; dimensions of theirs that have names get sizes."""
    spelling = 'constants={"rate": 16000}, the values of inputs'
    check_kind("from_onnx: constants", constants, Mapping | None, ImportModelError, spelling)
    inputs = {value.name: value for value in graph.input}
    for name, value in (constants or {}).items():
        if name not in inputs or not inputs[name].type.HasField("tensor_type"):
            raise ImportModelError(
                f"from_onnx: constants has {name!r}, expected names of inputs: {', '.join(map(repr, inputs))}"
            )
        type = inputs[name].type.tensor_type
        array, dtype = np.asarray(value), helper.tensor_dtype_to_np_dtype(type.elem_type)
        dims = list(type.shape.dim) if type.HasField("shape") else None
        sizes = None if dims is None else [dim.dim_value or dim.dim_param or "any" for dim in dims]
        fits = sizes is None or (
            len(sizes) == array.ndim
            and all(got == size for size, got in zip(sizes, array.shape, strict=True) if isinstance(size, int))
        )
        if not fits or not _holds(dtype, array):
            shape = "" if sizes is None else f", of the shape [{', '.join(map(str, sizes))}]"
            raise ImportModelError(
                f"from_onnx: constants[{name!r}] is {array.dtype}{list(array.shape)}, expected numbers that {dtype} "
                f"holds{shape}"
            )
        for dim, size in zip(dims or (), array.shape, strict=False):
            if dim.dim_param:
                _fix(graph, dim.dim_param, size)
        for default in [tensor for tensor in graph.initializer if tensor.name == name]:
            graph.initializer.remove(default)
        graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    _drop_initialized(graph)


def _drop_initialized(graph: onnx.GraphProto) -> None:
    """What has a value is no input: in files of IR version 3 all weights are."""
    initialized = {tensor.name for tensor in graph.initializer}
    for value in [value for value in graph.input if value.name in initialized]:
        graph.input.remove(value)


def _holds(dtype: np.dtype[Any], array: np.ndarray) -> bool:
    """Whether `dtype` has the numbers of an array; real ones may be rounded."""
    if array.dtype.kind not in "biuf":
        return False
    if array.dtype.kind == "f":
        return dtype.kind not in "biu"
    return bool((array.astype(dtype).astype(array.dtype) == array).all()) if dtype.kind in "biu" else True
