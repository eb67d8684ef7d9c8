"""Operators that ONNX itself defines by others: what TVM's importer lacks or mistakes of them is written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import inliner
from onnx.defs import OpSchema

#: Which nodes of an operator that TVM's importer has, it mistakes; all of the model's are then written out.
_MISTAKEN: dict[str, Callable[[onnx.NodeProto], bool]] = {
    "LayerNormalization": lambda node: sum(map(bool, node.output)) > 1,
}


def written_out(model: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """The model without functions: the model's own, and operators that are not `known` and that ONNX defines.

    Their bodies may have others, so that this goes on until there are none. A model without any is itself.
    """
    for _ in range(8):  # bodies are a few deep
        names = {*_undefined(model, known), *_mistaken(model)}
        if not names and not model.functions:
            return model
        _say_defaults(model, names)
        functions = [("", name) for name in sorted(names)] + [(one.domain, one.name) for one in model.functions]
        try:
            model = inliner.inline_selected_functions(_with_types(model), functions, False, True)
            named = [value for value in model.graph.value_info if value.name]
            del model.graph.value_info[:]
            model.graph.value_info.extend(named)
        except RuntimeError:  # a definition that needs to know types which cannot be inferred: it stays undefined
            return model
    return model


def _say_defaults(model: onnx.ModelProto, names: set[str]) -> None:
    """Attributes that nodes leave out: definitions that name them, ONNX's and the model's, get nothing otherwise."""
    versions = {one.domain: one.version for one in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    own = {(one.domain, one.name, one.overload): list(one.attribute_proto) for one in model.functions}
    bodies = [model.graph, *model.functions]
    for node in (node for body in bodies for graph in graphs_of(body) for node in graph.node):
        defaults = own.get((node.domain, node.op_type, node.overload), [])
        if node.domain in ("", "ai.onnx") and node.op_type in names:
            schema = onnx.defs.get_schema(node.op_type, opset)
            defaults = [attribute.default_value for attribute in schema.attributes.values()]
        said = {"", *(attribute.name for attribute in node.attribute)}
        node.attribute.extend(default for default in defaults if default.name not in said)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a type for each value, as definitions ask for it: of constants, and of inputs left out, too."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    typed = {value.name for value in (*model.graph.input, *model.graph.value_info)}
    for tensor in model.graph.initializer:
        if tensor.name not in typed:
            type = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.value_info.append(type)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    return model


def _undefined(model: onnx.ModelProto, known: frozenset[str]) -> set[str]:
    """Operators that are not known, and have a definition."""
    versions = {one.domain: one.version for one in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    return {name for name in _operators(model) - known if _is_defined(name, opset)}


def _is_defined(name: str, opset: int) -> bool:
    try:
        schema: OpSchema = onnx.defs.get_schema(name, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _mistaken(model: onnx.ModelProto) -> set[str]:
    return {
        node.op_type
        for graph in graphs_of(model.graph)
        for node in graph.node
        if node.domain in ("", "ai.onnx") and node.op_type in _MISTAKEN and _MISTAKEN[node.op_type](node)
    }


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for graph in graphs_of(model.graph) for node in graph.node if node.domain in ("", "ai.onnx")}


def graphs_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """A graph, or a function, and the graphs of its branches and loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)
