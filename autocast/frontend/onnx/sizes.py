"""What a graph computes of sizes that vary: whole numbers, and expressions in the names of dimensions.

An ONNX model says shapes by tensors: it takes the `Shape` of one, picks and multiplies sizes, and joins them for a
`Reshape`. Where sizes are known all of this is folded before (`folding`). Where they vary, each such tensor is an
array of expressions here, and the shape that it says is known by its expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax

from autocast.frontend.onnx.expressions import ELEMENTWISE, LOGICAL, OF_FLOATS, Ratio, exact, parts, simple
from autocast.ir import dtype_of, shape_of

#: An array of int, bool or expressions of int64; None where it cannot be said.
Values = np.ndarray | None

#: Tensors of more elements than this are left to the compiler.
LARGEST = 64


def _slice(data: np.ndarray, attributes: Mapping[str, Any], *given: np.ndarray) -> np.ndarray:
    said: Sequence[Any] = given or [attributes.get(name) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = [*said, None, None][:4]
    places = [slice(None)] * data.ndim
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = (default if one is None else int(one[at]) for one, default in ((axes, at), (steps, 1)))
        low, high = int(start), int(end)
        places[axis] = slice(low, None if step < 0 and high < -data.shape[axis] else high, step)
    return data[tuple(places)]


def _axes(attributes: Mapping[str, Any], given: Sequence[np.ndarray]) -> tuple[int, ...] | None:
    axes = given[0] if given else attributes.get("axes")
    return None if axes is None else tuple(int(axis) for axis in np.ravel(axes))


def _reshaped(data: np.ndarray, attributes: Mapping[str, Any], shape: np.ndarray) -> np.ndarray:
    sizes = [data.shape[at] if size == 0 else int(size) for at, size in enumerate(shape)]
    return data.reshape(sizes)


def _unsqueezed(data: np.ndarray, attributes: Mapping[str, Any], *given: np.ndarray) -> np.ndarray:
    axes = _axes(attributes, given) or (0,)
    return np.expand_dims(data, axes)


def _reduced(combine: Callable[[Any, Any], Any]) -> Callable[..., Values]:
    """What `combine` makes of the elements along some axes, or all."""

    def reduced(data: np.ndarray, attributes: Mapping[str, Any], *given: np.ndarray) -> Values:
        axes = _axes(attributes, given)
        if not axes:
            if attributes.get("noop_with_empty_axes"):
                return data
            axes = tuple(range(data.ndim))
        axes = tuple(axis % data.ndim for axis in axes)
        kept = [axis for axis in range(data.ndim) if axis not in axes]
        rows = data.transpose(*kept, *axes).reshape([*(data.shape[axis] for axis in kept), -1])
        result = np.empty(rows.shape[:-1], object)
        for at in np.ndindex(result.shape):
            result[at] = functools.reduce(combine, rows[at])
        return np.expand_dims(result, axes) if attributes.get("keepdims", 1) else result

    return reduced


def _filled(shape: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray | None:
    value = attributes.get("value")
    array = None if value is None else onnx.numpy_helper.to_array(value)
    sizes = [int(size) for size in shape]
    return None if array is None or array.dtype.kind not in "ib" else np.full(sizes, array.item(), object)


_REDUCED = {"Max": "Max", "Min": "Min", "Prod": "Mul", "Sum": "Add"}

#: Operator -> what it makes of the array that is its first input, its attributes, and the arrays of its other inputs.
_MOVES: dict[str, Callable[..., Values]] = {
    "ConstantOfShape": _filled,
    "Expand": lambda data, attributes, shape: data * np.ones([int(size) for size in shape], int),
    "Gather": lambda data, attributes, at: np.take(data, at.astype(int), axis=int(attributes.get("axis", 0))),
    "Identity": lambda data, attributes: data,
    **{f"Reduce{what}": _reduced(ELEMENTWISE[by]) for what, by in _REDUCED.items()},
    "Reshape": _reshaped,
    "Slice": _slice,
    "Squeeze": lambda data, attributes, *given: np.squeeze(data, _axes(attributes, given)),
    "Transpose": lambda data, attributes: data.transpose(attributes.get("perm")),
    "Unsqueeze": _unsqueezed,
}


#: Of these, each element of the result is one of the first input's.
_PLACED = frozenset(("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))

_WHOLE = (TensorProto.INT32, TensorProto.INT64)


def _cast(data: np.ndarray, to: int) -> np.ndarray | None:
    """Numbers in another dtype; those behind the point are cut, as no size is negative."""
    if to in _WHOLE:
        whole = [one.floor() if isinstance(one, Ratio) else one for one in data.reshape(-1)]
        return _objects(whole).reshape(data.shape)
    return data if to in (TensorProto.FLOAT, TensorProto.DOUBLE) else None


def _product(values: Iterable[Any]) -> Any:
    total: Any = 1
    for value in values:
        total = ELEMENTWISE["Mul"](total, value)
    return total


class Sizes:
    """The tensors of a graph that are known by expressions, and how many bits their elements have."""

    def __init__(self, parameter: Callable[[str], np.ndarray | None]) -> None:
        """`parameter`: the value of a parameter, of which some are a part of what says a shape."""
        self._parameter = parameter
        self.known: dict[str, np.ndarray] = {}
        #: What is joined of known and of other tensors, with None for each element of these.
        self.partly: dict[str, np.ndarray] = {}
        self.dtypes: dict[str, str] = {}

    @contextmanager
    def within(self) -> Iterator[None]:
        """What is computed in a branch or a step is not known outside."""
        tables: list[dict[str, Any]] = [self.known, self.partly, self.dtypes]
        outer = [dict(table) for table in tables]
        try:
            yield
        finally:
            for table, before in zip(tables, outer, strict=True):
                table.clear()
                table.update(before)

    def compute(self, node: onnx.NodeProto, nodes: Mapping[str, Any]) -> bool:
        """Whether a node's result is known by expressions, which are `known` from then on."""
        if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type in ("Shape", "Size"):
            return self._shape(node, nodes, attributes)
        if not any(node.op_type in table for table in (ELEMENTWISE, OF_FLOATS, _MOVES, ("Cast", "Concat"))):
            return False
        joins = node.op_type == "Concat"
        given = [self.array(name, nodes, parameters=joins) for name in node.input if name]
        if joins and any(one is None for one in given):
            self._join(node, nodes, given)
        elif node.input[0] in self.partly and given[0] is None and all(one is not None for one in given[1:]):
            self._move_partly(node, attributes, given[1:])
        if any(one is None for one in given) or not any(name in self.known for name in node.input):
            return False
        try:
            array = self._computed(node, nodes, attributes, [one for one in given if one is not None])
        except (TypeError, ValueError, IndexError):  # an argument that varies, where a number is needed
            return False
        if array is None or array.size > LARGEST or any(one is None for one in array.reshape(-1)):
            return False
        self.known[node.output[0]] = array
        self.dtypes[node.output[0]] = self._dtype(node, nodes, attributes)
        return True

    def _move_partly(self, node: onnx.NodeProto, attributes: Mapping[str, Any], given: Sequence[Values]) -> None:
        """Keep what is known of a vector where it is moved, or has another dtype."""
        data = self.partly[node.input[0]]
        if node.op_type == "Cast" and attributes["to"] in _WHOLE:
            self.partly[node.output[0]] = data
        elif node.op_type in _PLACED:
            with suppress(TypeError, ValueError, IndexError):
                moved = _MOVES[node.op_type](data, attributes, *given)
                if moved is not None:
                    self.partly[node.output[0]] = moved

    def _join(self, node: onnx.NodeProto, nodes: Mapping[str, Any], given: Sequence[Values]) -> None:
        """Keep what is known of a vector that others are a part of."""
        rows: list[np.ndarray] = []
        for name, one in zip(node.input, given, strict=True):
            type = nodes[name].ty
            sizes = shape_of(nodes[name]) if isinstance(type, relax.TensorType) else None
            if one is not None:
                rows.append(one)
            elif sizes is not None and len(sizes) == 1 and isinstance(sizes[0], int):
                rows.append(np.full(sizes[0], None, object))
            else:
                return
        self.partly[node.output[0]] = np.concatenate(rows)

    def _computed(
        self, node: onnx.NodeProto, nodes: Mapping[str, Any], attributes: Mapping[str, Any], given: list[np.ndarray]
    ) -> Values:
        name, is_float = node.op_type, self._dtype_of_data(node, nodes).startswith("float")
        if name == "Cast":
            return _cast(given[0], attributes["to"])
        if name == "Concat":
            return np.concatenate(given, axis=int(attributes["axis"]))
        if name in _MOVES:
            first, *rest = given
            moved = _MOVES[name](first, attributes, *rest)
            return moved if moved is None or isinstance(moved, np.ndarray) else _objects([moved]).reshape(())
        function = (OF_FLOATS if is_float else ELEMENTWISE).get(name)
        if function is None:
            return None
        arrays = np.broadcast_arrays(*given)
        result = np.empty(arrays[0].shape, object)
        for at in np.ndindex(result.shape):
            result[at] = function(*(one[at] for one in arrays))
        return result

    def _shape(self, node: onnx.NodeProto, nodes: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
        value, known = nodes.get(node.input[0]), self.array(node.input[0], nodes)
        sizes: tuple[Any, ...] | None = None if known is None else known.shape
        if known is None and value is not None and not isinstance(value.ty, relax.ShapeType):
            sizes = shape_of(value)
        if sizes is None:
            return False
        sizes = sizes[int(attributes.get("start", 0)) : int(attributes.get("end", len(sizes)))]
        array = _objects([simple(size) for size in sizes])
        self.known[node.output[0]] = array if node.op_type == "Shape" else np.array(_product(array), object)
        self.dtypes[node.output[0]] = "int64"
        return True

    def value(self, name: str, builder: relax.BlockBuilder) -> relax.Expr:
        """A constant, the shape of these sizes, or a tensor that is made of it when the model runs."""
        array, dtype = self.known[name], self.dtypes[name]
        if all(isinstance(one, int | bool) for one in array.reshape(-1)):
            return relax.const(array.astype(dtype), dtype)
        shape = relax.ShapeExpr([parts(one)[0] for one in array.reshape(-1)])
        if array.ndim == 1 and dtype == "int64":
            return shape

        def tensor(sizes: relax.ShapeExpr) -> relax.Expr:
            whole = relax.op.reshape(relax.op.shape_to_tensor(sizes), list(array.shape))
            return builder.emit(whole if dtype == "int64" else relax.op.astype(whole, dtype))

        if not any(isinstance(one, Ratio) for one in array.reshape(-1)):
            return tensor(shape)
        below = relax.ShapeExpr([parts(one)[1] for one in array.reshape(-1)])
        return builder.emit(relax.op.divide(tensor(shape), tensor(below)))

    def _dtype(self, node: onnx.NodeProto, nodes: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
        if node.op_type in LOGICAL:
            return "bool"
        if node.op_type == "Cast":
            return str(helper.tensor_dtype_to_np_dtype(attributes["to"]))
        return self._dtype_of_data(node, nodes)

    def _dtype_of_data(self, node: onnx.NodeProto, nodes: Mapping[str, Any]) -> str:
        """Of what is moved, of either choice, or of all operands, which have the same."""
        name = node.input[-1 if node.op_type == "Where" else 0]
        return self.dtypes[name] if name in self.dtypes else str(dtype_of(nodes[name]) or "int64")

    def array(self, name: str, nodes: Mapping[str, Any], parameters: bool = False) -> Values:
        """The elements of a tensor: what is known of it, those of a small constant, or the sizes of a shape."""
        if name in self.known:
            return self.known[name]
        value = nodes.get(name)
        if isinstance(value, relax.ShapeExpr):
            return _objects([simple(size) for size in value.values])
        if isinstance(value, tvm.ir.GenericConst):
            array = value.value.numpy()
        else:
            array = self._parameter(value.name) if parameters and isinstance(value, relax.Var) else None
        if array is None or array.size > LARGEST or array.dtype.kind not in "iubf":
            return None
        return exact(array) if array.dtype.kind == "f" else array.astype(object)


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    return array
