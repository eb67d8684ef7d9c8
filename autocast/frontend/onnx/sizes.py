"""What a graph computes of sizes that vary: whole numbers, and expressions in the names of dimensions.

An ONNX model says shapes by tensors: it takes the `Shape` of one, picks and multiplies sizes, and joins them for a
`Reshape`. Where sizes are known all of this is folded before (`folding`). Where they vary, each such tensor is an
array of expressions here, and the shape that it says is known by its expressions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax, tirx

from autocast.ir import shape_of

#: An array of int, bool or expressions of int64; None where it cannot be said.
Values = np.ndarray | None

#: No axis is as long: ends from here on mean the end, whatever the size is.
BEYOND = 10**9

#: Tensors of more elements than this are left to the compiler.
LARGEST = 64

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def _quotient(a: Any, b: Any) -> Any:
    """Of sizes, which are not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a / b) if b else None
    return _divided(tirx.floordiv, a, b, 1)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else None
    return _divided(tirx.floormod, a, b, 0)


def _divided(divide: Callable[[Any, Any], Any], a: Any, b: Any, by_itself: int) -> Any:
    """A quotient or a remainder of sizes; one of 0 divides as 1 does, since nothing else may come of it."""
    if isinstance(b, int):
        return _simple(divide(a, b)) if b > 0 else None
    return by_itself if tvm.sym.Analyzer().can_prove_equal(a, b) else _simple(divide(a, tirx.max(b, 1)))


def _chosen(of_numbers: Callable[[Any, Any], Any], of_sizes: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: of_numbers(a, b) if isinstance(a, int) and isinstance(b, int) else _simple(of_sizes(a, b))


def _equal(a: Any, b: Any) -> bool | None:
    """Whether two sizes are the same whatever the dimensions are; None if that depends."""
    if isinstance(a, int | bool) and isinstance(b, int | bool):
        return a == b
    analyzer = tvm.sym.Analyzer()
    if analyzer.can_prove_equal(a, b):
        return True
    numbers = [one for one in (a, b) if isinstance(one, int)]
    return False if numbers and numbers[0] < 0 else None  # no size is negative


def _simple(value: Any) -> Any:
    value = tvm.sym.Analyzer().simplify(value) if isinstance(value, tvm.ir.Expr) else value
    return int(value) if isinstance(value, tirx.IntImm) else value


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool | None]:
    """Whether a comparison of sizes holds whatever the dimensions are; None if that depends."""

    def compared(a: Any, b: Any) -> bool | None:
        if isinstance(a, int) and isinstance(b, int):
            return bool(compare(a, b))
        analyzer = of_sizes([a, b])
        holds = compare(a, b)
        return True if analyzer.can_prove(holds) else False if analyzer.can_prove(tirx.Not(holds)) else None

    return compared


def of_sizes(*values: Any) -> tvm.sym.Analyzer:
    """What knows that the dimensions in expressions are not negative."""
    analyzer = tvm.sym.Analyzer()
    expressions = [one for group in values for one in group if isinstance(one, tvm.ir.Expr)]
    for var in {var for one in expressions for var in tirx.analysis.undefined_vars(one)}:
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", 0), tirx.IntImm("int64", BEYOND)))
    return analyzer


#: Operators whose results are bools.
_LOGICAL = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"))

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": _chosen(operator.add, operator.add),
    "And": lambda a, b: False if a is False or b is False else None if a is None or b is None else a and b,
    "Div": _quotient,
    "Equal": _equal,
    "Greater": _compared(operator.gt),
    "GreaterOrEqual": _compared(operator.ge),
    "Less": _compared(operator.lt),
    "LessOrEqual": _compared(operator.le),
    "Max": _chosen(max, tirx.max),
    "Min": _chosen(min, tirx.min),
    "Mod": _remainder,
    "Mul": _chosen(operator.mul, operator.mul),
    "Neg": lambda a: -a if isinstance(a, int) else _simple(0 - a),
    "Not": lambda a: None if a is None else not a,
    "Or": lambda a, b: True if a is True or b is True else None if a is None or b is None else a or b,
    "Sub": _chosen(operator.sub, operator.sub),
    "Where": lambda condition, a, b: None if condition is None else a if condition else b,
}


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


def _filled(shape: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray | None:
    value = attributes.get("value")
    array = None if value is None else onnx.numpy_helper.to_array(value)
    sizes = [int(size) for size in shape]
    return None if array is None or array.dtype.kind not in "ib" else np.full(sizes, array.item(), object)


#: Operator -> what it makes of the array that is its first input, its attributes, and the arrays of its other inputs.
_MOVES: dict[str, Callable[..., Values]] = {
    "ConstantOfShape": _filled,
    "Expand": lambda data, attributes, shape: data * np.ones([int(size) for size in shape], int),
    "Gather": lambda data, attributes, at: np.take(data, at.astype(int), axis=int(attributes.get("axis", 0))),
    "Identity": lambda data, attributes: data,
    "ReduceProd": lambda data, attributes, *given: np.array(_product(data.reshape(-1)), object).reshape(
        [1] * data.ndim if attributes.get("keepdims", 1) else []
    ),
    "Reshape": _reshaped,
    "Slice": _slice,
    "Squeeze": lambda data, attributes, *given: np.squeeze(data, _axes(attributes, given)),
    "Unsqueeze": _unsqueezed,
}


def _product(values: Iterable[Any]) -> Any:
    total: Any = 1
    for value in values:
        total = _ELEMENTWISE["Mul"](total, value)
    return total


class Sizes:
    """The tensors of a graph that are known by expressions, and how many bits their elements have."""

    def __init__(self) -> None:
        self.known: dict[str, np.ndarray] = {}
        #: What is joined of known and of other tensors, with None for each element of these.
        self.partly: dict[str, np.ndarray] = {}
        self.dtypes: dict[str, str] = {}

    def compute(self, node: onnx.NodeProto, nodes: Mapping[str, Any]) -> bool:
        """Whether a node's result is known by expressions, which are `known` from then on."""
        if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type in ("Shape", "Size"):
            return self._shape(node, nodes, attributes)
        if node.op_type not in _ELEMENTWISE and node.op_type not in _MOVES and node.op_type not in ("Cast", "Concat"):
            return False
        given = [self.array(name, nodes) for name in node.input if name]
        if node.op_type == "Concat" and any(one is None for one in given):
            self._join(node, nodes, given)
        if any(one is None for one in given) or not any(name in self.known for name in node.input):
            return False
        try:
            array = self._computed(node.op_type, attributes, [one for one in given if one is not None])
        except (TypeError, ValueError, IndexError):  # an argument that varies, where a number is needed
            return False
        if array is None or array.size > LARGEST or any(one is None for one in array.reshape(-1)):
            return False
        self.known[node.output[0]] = array
        self.dtypes[node.output[0]] = self._dtype(node, attributes)
        return True

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

    def _computed(self, name: str, attributes: Mapping[str, Any], given: list[np.ndarray]) -> Values:
        if name == "Cast":
            return given[0] if attributes["to"] in _INTEGERS else None
        if name == "Concat":
            return np.concatenate(given, axis=int(attributes["axis"]))
        if name in _MOVES:
            first, *rest = given
            moved = _MOVES[name](first, attributes, *rest)
            return moved if moved is None or isinstance(moved, np.ndarray) else _objects([moved]).reshape(())
        function = _ELEMENTWISE[name]
        arrays = np.broadcast_arrays(*given)
        result = np.empty(arrays[0].shape, object)
        for at in np.ndindex(result.shape):
            result[at] = function(*(one[at] for one in arrays))
        return result

    def _shape(self, node: onnx.NodeProto, nodes: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
        value = nodes.get(node.input[0])
        sizes = None if value is None or isinstance(value.ty, relax.ShapeType) else shape_of(value)
        if sizes is None:
            return False
        sizes = sizes[int(attributes.get("start", 0)) : int(attributes.get("end", len(sizes)))]
        array = _objects([_simple(size) for size in sizes])
        self.known[node.output[0]] = array if node.op_type == "Shape" else np.array(_product(array), object)
        self.dtypes[node.output[0]] = "int64"
        return True

    def value(self, name: str, builder: relax.BlockBuilder) -> relax.Expr:
        """A constant, the shape of these sizes, or a tensor that is made of it when the model runs."""
        array, dtype = self.known[name], self.dtypes[name]
        if all(isinstance(one, int | bool) for one in array.reshape(-1)):
            return relax.const(array.astype(dtype), dtype)
        shape = relax.ShapeExpr(array.reshape(-1).tolist())
        if array.ndim == 1 and dtype == "int64":
            return shape
        tensor = relax.op.reshape(relax.op.shape_to_tensor(shape), list(array.shape))
        return builder.emit(tensor if dtype == "int64" else relax.op.astype(tensor, dtype))

    def _dtype(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> str:
        if node.op_type in _LOGICAL:
            return "bool"
        if node.op_type == "Cast":
            return str(helper.tensor_dtype_to_np_dtype(attributes["to"]))
        return next((self.dtypes[name] for name in reversed(node.input) if name in self.dtypes), "int64")

    def array(self, name: str, nodes: Mapping[str, Any]) -> Values:
        """The elements of a tensor: what is known of it, those of a small constant, or the sizes of a shape."""
        if name in self.known:
            return self.known[name]
        value = nodes.get(name)
        if isinstance(value, relax.ShapeExpr):
            return _objects([_simple(size) for size in value.values])
        if not isinstance(value, tvm.ir.GenericConst):
            return None
        array = value.value.numpy()
        return array.astype(object) if array.dtype.kind in "iub" and array.size <= LARGEST else None


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    return array
