"""ONNX's graphs as Relax functions: our converters, and TVM's importer for what they leave to it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend as tvm_onnx

from autocast.errors import ImportModelError, UnsupportedError
from autocast.frontend.onnx.agreement import agreed
from autocast.frontend.onnx.control import branches, loop
from autocast.frontend.onnx.converters import CONVERTERS, Converter, Node
from autocast.frontend.onnx.converters.node import sized
from autocast.frontend.onnx.operators import SAID_BY_INPUTS, full_name
from autocast.frontend.onnx.recurrent import RECURRENT, recurrent
from autocast.frontend.onnx.rows import loop_with_rows, scan
from autocast.frontend.onnx.sizes import Sizes
from autocast.ir import PlacedBuilder, dtype_of, lacks_dtype, shape_of
from autocast.ir.places import Place
from autocast.messages import reason


class GraphImporter(tvm_onnx.ONNXGraphImporter):
    """TVM's importer, with the nodes' names as places, and each node's results checked."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__(None, None, keep_params_in_input=True)
        self.bb = PlacedBuilder()
        self._sizes = Sizes(self._parameter)
        self._loops = itertools.count()
        self._depth = 0  # of graphs in nodes
        self._inferred = {value.name: value for value in (*graph.value_info, *graph.output)}
        self._outputs = {output.name for output in graph.output}

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        """Floating-point tensors become parameters; numbers, and integers, which say shapes and axes, constants."""
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if (array.ndim and array.dtype.kind == "f") or str(array.dtype) == "bfloat16":
                var = self._new_var(tensor.name, shape=array.shape, dtype=str(array.dtype))
                self._nodes[tensor.name] = var
                self._params[tensor.name] = (var, tvm.runtime.tensor(array))
            else:
                self._nodes[tensor.name] = relax.const(tvm.runtime.tensor(array))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """That was done, for all graphs at once."""

    def _construct_nodes(self, graph: Any) -> None:
        self._depth += 1
        for node in graph.node:
            where = f"{full_name(node)}{f' {node.name!r}' if node.name else ''}"
            self.bb.place = Place(node.name.strip("/").rpartition("/")[0].replace("/", "."), "")
            try:
                if self._sizes.compute(node, self._nodes):
                    self._nodes[node.output[0]] = self._sizes.value(node.output[0], self.bb)
                elif node.op_type == "If":
                    branches(self, node)
                elif node.op_type == "Loop":
                    has_rows = any(node.output[len(node.input) - 2 :])
                    (loop_with_rows if has_rows else loop)(self, node, f"loop_{next(self._loops)}")
                elif node.op_type == "Scan":
                    scan(self, node, f"loop_{next(self._loops)}")
                else:
                    self._operator(node)
            except UnsupportedError as error:
                if str(error).startswith("from_onnx:"):  # of a node in a branch
                    raise
                raise UnsupportedError(f"from_onnx: the node {where}: {error}") from error
            except ImportModelError:
                raise
            except Exception as error:
                raise ImportModelError(
                    f"from_onnx: the node {where} cannot be imported with these arguments: {reason(error)}. Export the "
                    "model with constant shapes, or without this node"
                ) from error
            self._nodes.pop("", None)  # of a result that the node leaves out
            for name in node.output:
                if name in self._inferred and name in self._nodes:
                    self._check(where, name, self._nodes[name], self._inferred[name])
                if name in self._outputs and isinstance(self._nodes[name].ty, relax.ShapeType):
                    self._nodes[name] = self.bb.emit(relax.op.shape_to_tensor(self._nodes[name]))
                if name in self._nodes:
                    self._nodes[name] = self._with_sizes(name, self._nodes[name])
        self._depth -= 1

    def _with_sizes(self, name: str, value: relax.Expr, known: Mapping[int, Any] = MappingProxyType({})) -> relax.Expr:
        """A result whose sizes depend on values, with a name for each that nobody knows; within a branch or a step
        they have none."""
        is_known = not isinstance(value.ty, relax.TensorType) or shape_of(value) is not None or lacks_dtype(value.ty)
        if is_known or value.ty.ndim < 1 or self._depth > 1:
            return value
        dims = self._inferred[name].type.tensor_type.shape.dim if name in self._inferred else ()
        said = {axis: dim.dim_value for axis, dim in enumerate(dims) if dim.HasField("dim_value")}
        return self.bb.match_cast(value, sized(value, name, {**said, **known}))

    def _operator(self, node: onnx.NodeProto) -> None:
        """By a converter of ours, or by TVM's importer, of operands whose sizes agree."""
        converter = CONVERTERS.get(full_name(node))
        if converter is None:
            self._check_said(node)
        before = {name: self._nodes[name] for name in node.input if name}
        attributes = {one.name: one.i for one in node.attribute}
        inputs = [self._nodes[name] if name else None for name in node.input]
        for name, value in zip(node.input, agreed(self.bb, node.op_type, inputs, attributes), strict=True):
            if name:
                self._nodes[name] = value
        if converter is None:
            self._by_tvm(node)
        else:
            self._convert(node, converter)
        self._nodes.update((name, value) for name, value in before.items() if name not in node.output)

    def _convert(self, node: onnx.NodeProto, converter: Converter) -> None:
        """By a converter of ours."""
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        results = tuple(node.output)
        value = converter(
            Node(
                builder=self.bb,
                inputs=tuple(self._nodes[name] if name else None for name in node.input),
                attributes={name: one.decode() if isinstance(one, bytes) else one for name, one in attributes.items()},
                results=results,
                opset=self.opset,
                parameter=self._parameter,
                expressions=lambda at: self._sizes.array(node.input[at], self._nodes) if at < len(node.input) else None,
                partly=lambda at: self._sizes.partly.get(node.input[at]),
                other=self._other,
            )
        )
        if not isinstance(value, relax.Tuple) and isinstance(value.ty, tvm.ir.TupleType):
            fields = range(len(value.ty.fields))
            value = relax.Tuple([self.bb.emit(relax.TupleGetItem(value, at)) for at in fields])
        parts = value.fields if isinstance(value, relax.Tuple) else [value]
        for name, result in zip(results, parts, strict=False):
            self._nodes[name] = result

    def _by_tvm(self, node: onnx.NodeProto) -> None:
        """By TVM's importer, which takes shapes for other shapes where it cannot know them to be the same."""
        self._nodes.update((name, self._tensor(self._nodes[name])) for name in node.input if name)
        super()._construct_nodes(SimpleNamespace(node=[node]))

    def _tensor(self, value: relax.Expr | None) -> relax.Expr | None:
        """A shape as a tensor, and a tensor as it is."""
        is_shape = value is not None and isinstance(value.ty, relax.ShapeType)
        return self.bb.emit(relax.op.shape_to_tensor(value)) if is_shape else value

    def _check_said(self, node: onnx.NodeProto) -> None:
        """UnsupportedError if a node computes axes, a shape or a count from values that are known when it runs."""
        at, what = SAID_BY_INPUTS.get(full_name(node), (0, ""))
        value = self._nodes[node.input[at]] if what and at < len(node.input) and node.input[at] else None
        if (
            isinstance(value, relax.Var)
            and not isinstance(value.ty, relax.ShapeType)
            and value.name not in self._params
        ):
            raise UnsupportedError(
                f"its {what} is computed when the model runs; expected a constant. Export it with one"
            )

    def _parameter(self, name: str) -> np.ndarray | None:
        return self._params[name][1].numpy() if name in self._params else None

    def _other(self, name: str, inputs: Sequence[relax.Expr | None], attributes: Mapping[str, Any]) -> relax.Expr:
        """What the node of an operator of TVM's importer would be."""
        raw = {key: value.encode() if isinstance(value, str) else value for key, value in attributes.items()}
        raw["tvm_custom"] = {"name": "", "num_outputs": 1}
        given = tvm_onnx.onnx_input([self._tensor(value) for value in inputs])
        return super()._convert_operator(name, given, raw, self.opset)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        """Recurrent layers by ours."""
        if op_name in RECURRENT:
            return self.bb.normalize(recurrent(self.bb, op_name, inputs, attrs))
        return super()._convert_operator(op_name, inputs, attrs, opset)

    def _check(self, where: str, name: str, value: relax.Expr, inferred: onnx.ValueInfoProto) -> None:
        """ImportModelError unless a result may be of the dtype and the shape that ONNX infers for it."""
        type = inferred.type.tensor_type
        if not inferred.type.HasField("tensor_type") or not type.elem_type:
            return
        dtype = tvm_onnx.get_type(type.elem_type)
        got_dtype = None if isinstance(value.ty, relax.ShapeType) or lacks_dtype(value.ty) else dtype_of(value)
        shape, wrong = shape_of(value) if got_dtype else None, got_dtype not in (None, dtype)
        if type.HasField("shape") and shape is not None:
            sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in type.shape.dim]
            wrong |= len(sizes) != len(shape) or any(
                size is not None and isinstance(got, int | tirx.IntImm) and int(got) != size
                for size, got in zip(sizes, shape, strict=False)
            )
        if wrong:
            expected = onnx.helper.printable_type(inferred.type)
            raise ImportModelError(
                f"from_onnx: the result {name!r} of the node {where} became a {value.ty}, expected {expected} as ONNX "
                "infers: TVM's importer mistakes this node. Export the model without it"
            )
