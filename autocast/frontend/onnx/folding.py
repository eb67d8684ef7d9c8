"""What an ONNX graph computes of constants and of known sizes becomes constants, and an `If` on them one branch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from autocast.errors import ImportModelError
from autocast.frontend.onnx.operators import FLOATS, LISTS
from autocast.messages import reason

#: Constants of more elements than this are left to the compiler.
LARGEST = 4096

_RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_NUMBERS = "biuf"


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose shapes are inferred, with constants in place of nodes whose inputs are constants.

    Parameters, which are initializers of floating point with axes, are none, whatever is computed of them.
    A `Shape` or `Size` counts where the sizes that it gives are known, and an `If` on a constant is replaced by the
    nodes of its branch. Nodes of more than LARGEST elements, and random ones, stay.
    """
    for _ in range(16):  # the sizes that a chosen branch and its constants tell are inferred in the next round
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        opsets = [one for one in model.opset_import if one.domain in ("", "ai.onnx")]
        if not _Folder(model.graph, opsets, None).fold():
            break
    return model


class _Folder:
    """One pass over a graph, and over those of its branches and loops, which see its constants."""

    def __init__(self, graph: onnx.GraphProto, opsets: list[onnx.OperatorSetIdProto], outer: _Folder | None) -> None:
        self.graph, self.opsets = graph, opsets
        self.outputs = {output.name for output in self.graph.output}
        given = [*self.graph.input, *self.graph.value_info, *self.graph.output]
        self.types: dict[str, onnx.TypeProto.Tensor] = {} if outer is None else dict(outer.types)
        self.types |= {value.name: value.type.tensor_type for value in given}
        given_by_caller = {value.name for value in self.graph.input}
        self.constants: dict[str, np.ndarray] = {} if outer is None else dict(outer.constants)
        self.constants |= {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in self.graph.initializer
            if tensor.name not in given_by_caller and not _is_parameter(tensor) and math.prod(tensor.dims) <= LARGEST
        }

    def fold(self) -> bool:
        """Whether there was anything to do."""
        kept: list[onnx.NodeProto] = []
        changed = False
        for node in self.graph.node:
            values = self._values(node)
            if values is not None:
                self.constants.update(values)
                is_new = node.op_type != "Constant" or node.attribute[0].name != "value"
                changed |= is_new
                kept += [_constant(name, value) for name, value in values.items()] if is_new else [node]
            elif node.op_type == "If" and node.input[0] in self.constants:
                changed = True
                kept += self._branch(node)
            else:
                kept.append(node)
                changed |= self._inside(node)
        del self.graph.node[:]
        self.graph.node.extend(kept)
        return changed

    def _inside(self, node: onnx.NodeProto) -> bool:
        """Whether there was anything to do in a node's branches, or in its steps."""
        graphs = [one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH]
        changed = [_Folder(graph, self.opsets, self).fold() for graph in graphs]
        return any(changed)

    def _values(self, node: onnx.NodeProto) -> dict[str, np.ndarray] | None:
        """The results of a node of constants, by name; None if it is none."""
        if node.domain not in ("", "ai.onnx") or node.op_type in (_RANDOM | LISTS):
            return None
        if self.outputs.intersection(node.output):
            return None
        if any(one.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for one in node.attribute):
            return None
        if node.op_type in ("Shape", "Size"):
            sizes = self._sizes(node.input[0])
            attributes = {one.name: one.i for one in node.attribute}
            if sizes is None:
                return None
            if node.op_type == "Shape":
                sizes = sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))]
            if None in sizes:
                return None
            array = np.array(sizes, "int64")
            return {node.output[0]: array if node.op_type == "Shape" else np.array(array.prod(), "int64")}
        if any(name and name not in self.constants for name in node.input) or not self._is_small(node.output):
            return None
        return self._evaluated(node)

    def _evaluated(self, node: onnx.NodeProto) -> dict[str, np.ndarray] | None:
        """By ONNX's own reference, where it has all of the node's results as numbers."""
        names = [name for name in dict.fromkeys(node.input) if name]
        results = [name for name in node.output if name]
        any_type = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [any_type(name, onnx.helper.np_dtype_to_tensor_dtype(self.constants[name].dtype), None) for name in names],
            [any_type(name, self.types[name].elem_type if name in self.types else 0, None) for name in results],
        )
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=self.opsets)).run(
                    None, {name: self.constants[name] for name in names}
                )
        except Exception:  # the reference lacks it: the importer may have it
            return None
        arrays = [np.asarray(value) for value in values]
        if any(array.dtype.kind not in _NUMBERS or array.size > LARGEST for array in arrays):
            return None
        return dict(zip(results, arrays, strict=True))

    def _sizes(self, name: str) -> list[int | None] | None:
        """The sizes of a tensor, as far as they are known; None where not even the number of its axes is."""
        if name in self.constants:
            return [*self.constants[name].shape]
        type = self.types.get(name)
        if type is None or not type.HasField("shape"):
            return None
        return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in type.shape.dim]

    def _is_small(self, names: Iterable[str]) -> bool:
        sizes = [self._sizes(name) for name in names if name]
        return all(one is None or None in one or math.prod(map(int, filter(None, one))) <= LARGEST for one in sizes)

    def _branch(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes of the branch that an `If` takes; what it gives is copied to the names of the node's results."""
        taken = "then_branch" if self.constants[node.input[0]].reshape(-1)[0] else "else_branch"
        branch = next(one.g for one in node.attribute if one.name == taken)
        prefix = f"{node.output[0]}/"
        own = {name for inner in branch.node for name in inner.output if name}
        own |= {tensor.name for tensor in branch.initializer}
        try:
            named = onnx.compose.add_prefix_graph(branch, prefix, rename_inputs=False, rename_outputs=True)
        except Exception as error:
            raise ImportModelError(
                f"from_onnx: a branch of the node If {node.name!r} cannot be taken: {reason(error)}. "
                "Export the model without it"
            ) from error
        self.graph.initializer.extend(named.initializer)
        self.graph.value_info.extend(named.value_info)
        copies = [
            onnx.helper.make_node("Identity", [f"{prefix}{inner.name}" if inner.name in own else inner.name], [outer])
            for inner, outer in zip(branch.output, node.output, strict=True)
            if outer
        ]
        return [*named.node, *copies]


def _is_parameter(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.dims) and tensor.data_type in FLOATS


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))
