"""What torch's exporter makes, as a file: tidied, and with the names that the model has."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from autocast.container.whole_file import whole_file
from autocast.errors import UnsupportedError

#: Bytes of weights that one file has; protobuf ends at 2 GiB, the graph included.
LARGEST = 2_000_000_000

#: Bytes of tensors that are never beside the file: whoever infers shapes has to read those that say them.
SMALL = 1024


def tidy(program: Any, parameters: set[str], outputs: Sequence[str]) -> None:
    """Compute what depends on constants alone, and leave parameters and their casts as they are, by their names; give
    the results these names."""
    import onnx_ir.passes.common as passes
    from onnxscript import rewriter
    from onnxscript.optimizer import fold_constants
    from onnxscript.rewriter.rules import common as rules

    def should_fold(node: Any) -> bool | None:
        return False if any(value is not None and value.name in parameters for value in node.inputs) else None

    passes.InlinePass()(program)
    _rename(program.graph, parameters)
    fold_constants(program, onnx_shape_inference=True, should_fold=should_fold)
    own = [rules.materialize_reshape_shape_rule, rules.squeeze_reshape_1d_rule, _transposed_before_cast()]
    rewriter.rewrite(program, own)
    _drop_identities(program.graph)
    _return_own_values(program.graph)  # before what branches read of the graph around them counts as unused
    for tidied in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedFunctionsPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.ClearMetadataAndDocStringPass(),  # the paths of this machine's files
        passes.NameFixPass(),  # two branches have a `val_0`, each a function of its own before
    ):
        tidied(program)
    _name_outputs(program.graph, outputs)
    program.producer_name, program.producer_version = "relax-autocast", ""


def _transposed_before_cast() -> Any:
    """Transpose what a product reads before it is cast to float16, not after it: onnxruntime 1.32 ends the process
    that loads it otherwise, where the last axis stays."""
    from onnx import TensorProto
    from onnxscript.rewriter.pattern import RewriteRule

    half = int(TensorProto.FLOAT16)

    def cast_first(op: Any, x: Any, w: Any, perm: Any) -> Any:
        return op.MatMul(op.Transpose(op.Cast(x, to=half), perm=perm), w)

    def cast_last(op: Any, x: Any, w: Any, perm: Any) -> Any:
        return op.MatMul(op.Cast(op.Transpose(x, perm=perm), to=half), w)

    return RewriteRule(cast_first, cast_last, remove_nodes=False)


def _rename(graph: Any, parameters: set[str]) -> None:
    """Rename what is computed under a parameter's name: files of torch's exporter have weights called `val_3`, as it
    calls values, too."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(graph):
        for value in node.outputs:
            if value.name in parameters:
                value.name = next(name for i in count() if (name := f"{value.name}_{i}") not in parameters)


def _drop_identities(graph: Any) -> None:
    """Have what reads the same value read the value: onnx_ir's pass fails where several branches return one."""
    import onnx_ir as ir

    node: Any
    for node in list(ir.traversal.RecursiveGraphIterator(graph)):
        if node.op_type != "Identity":
            continue
        (value,), (same,) = node.inputs, node.outputs
        if same.is_graph_output():
            if (
                value.graph is not node.graph
                or value.is_graph_input()
                or value.is_initializer()
                or value.is_graph_output()
            ):
                continue
            value.name = same.name
        value.shape, value.type = value.shape or same.shape, value.type or same.type
        ir.convenience.replace_all_uses_with(same, value, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)


def _return_own_values(graph: Any) -> None:
    """Have branches return values of their own: those from outside, which ONNX forbids, by an Identity."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(graph):
        for attribute in node.attributes.values():
            if attribute.type is not ir.AttributeType.GRAPH:
                continue
            branch = attribute.as_graph()
            for position, output in enumerate(branch.outputs):
                producer = output.producer()
                if producer is None or producer.graph is not branch:
                    own = ir.node("Identity", [output])
                    branch.append(own)
                    branch.outputs[position] = own.outputs[0]


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Name the results; one that is an input, a parameter or another result, each of which has its own name, is an
    Identity of it."""
    import onnx_ir as ir

    named: set[Any] = {*graph.inputs, *graph.initializers.values()}
    for position, name in enumerate(names):
        value = graph.outputs[position]
        if value in named:
            same = ir.Value(type=value.type, shape=value.shape)
            graph.append(ir.node("Identity", [value], outputs=[same]))
            graph.outputs[position] = value = same
        named.add(value)
        value.name = name
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for value in node.outputs:
            if value.name in names and value not in named:
                value.name = f"{value.name}_inner"


def check_low(graph: Any, opset: int, newer: int) -> None:
    """UnsupportedError where an older opset has no bfloat16 for operators that have it in a newer one."""
    import onnx
    import onnx_ir as ir

    def takes(name: str, place: int, version: int) -> bool:
        inputs = onnx.defs.get_schema(name, version).inputs
        return "tensor(bfloat16)" in inputs[min(place, len(inputs) - 1)].types

    lacking = Counter(
        node.op_type
        for node in ir.traversal.RecursiveGraphIterator(graph)
        for place, value in enumerate(node.inputs)
        if opset < newer and not node.domain and value is not None and value.dtype == ir.DataType.BFLOAT16
        if not takes(node.op_type, place, opset) and takes(node.op_type, place, newer)
    )
    if lacking:
        raise UnsupportedError(
            f"to_onnx: ONNX's opset {opset} has no {', '.join(lacking)} of bfloat16, expected one that has. Try "
            f"opset={newer}, or a model of float16: amp.autocast(model, dtype='float16')"
        )


def write(program: Any, path: Path) -> None:
    """Write the model, and its weights beside it where one file cannot have them: they first, under a new name."""
    import onnx_ir as ir

    held = [value for value in program.graph.initializers.values() if value.const_value is not None]
    beside = ""
    if sum(value.const_value.nbytes for value in held) > LARGEST:
        held = [value for value in held if value.const_value.nbytes > SMALL]
        beside = f"{path.name}.{secrets.token_hex(4)}.data"
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if beside:
            tensors = [value.const_value for value in held]
            outside = ir.external_data.convert_tensors_to_external(tensors, path.parent, beside)
            for value, tensor in zip(held, outside, strict=True):
                value.const_value = tensor
        text = ir.to_proto(program).SerializeToString()
        with whole_file(path) as file:
            file.write(text)
    except BaseException:
        if beside:
            (path.parent / beside).unlink(missing_ok=True)
        raise
    for old in path.parent.glob(f"{path.name}.????????.data"):
        if old.name != beside:
            old.unlink(missing_ok=True)
