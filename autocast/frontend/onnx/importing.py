"""Import an ONNX model: TVM's importer, whose results are held against ONNX's own inference of shapes and dtypes."""

from __future__ import annotations

import contextlib
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import onnx
from tvm.relax.frontend.onnx import onnx_frontend as tvm_onnx

from autocast.errors import ImportModelError, UnsupportedError
from autocast.frontend.names import variable_name
from autocast.frontend.onnx.converters import CONVERTERS
from autocast.frontend.onnx.folding import folded
from autocast.frontend.onnx.four_bits import widen_four_bits
from autocast.frontend.onnx.functions import graphs_of, written_out
from autocast.frontend.onnx.graph_importer import GraphImporter
from autocast.frontend.onnx.growing import with_rows
from autocast.frontend.onnx.inputs import make_constant, make_dynamic
from autocast.frontend.onnx.lists import resolved, without_maps
from autocast.frontend.onnx.loops import unrolled, with_outer_initializers
from autocast.frontend.onnx.operators import full_name, mistaken
from autocast.frontend.onnx.recurrent import RECURRENT
from autocast.frontend.onnx.row_lists import as_rows
from autocast.frontend.relax import from_relax
from autocast.interrupts import passing_interrupts
from autocast.messages import check_kind, checked_path, reason
from autocast.model.value import IMPORTED_FROM, Model


@passing_interrupts()
def from_onnx(
    path_or_model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dynamic: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Model:
    """Import an ONNX model as it stands: its dtypes, and the casts in it, are its author's.

    Parameters
    ----------
    path_or_model : path or onnx.ModelProto
        A file, with its weights in it or beside it, or a model in memory with all of its weights.
    dynamic : mapping, optional
        Dimensions that may differ from call to call besides those that the model names: `{"batch": ("input", 0, 1,
        64)}` (name: input, axis, minimum, maximum; the bounds may be left out), a list of such tuples where inputs
        share the dimension. A number in their place is the size of all dimensions that the model gives this name
        (`{"batch": 1}`), which then do not vary; nor does one whose bounds are equal.
    constants : mapping, optional
        Values of inputs, which then are no inputs: `{"rate": 16000}`. What they decide, branches and shapes, is known.
        Inputs that have a value in the model, as all weights of old files do, are none either.

    Returns
    -------
    Model
        Its inputs and outputs are the graph's, by their names; its parameters are the graph's initializers of floating
        point, by theirs. Characters that no identifier has become `_` in the names of inputs. What a `ZipMap` makes
        maps of, one for each row, is a table: its columns are the maps' keys, in their order.

    Raises
    ------
    ImportModelError
        There is no such file, it is no ONNX model, `dynamic` or `constants` do not fit it, or a node's result is not of
        the dtype or the shape that ONNX infers for it.
    UnsupportedError
        The model has operators that are not imported; all are listed, with how often they appear.
    """
    model = _checked(_loaded(path_or_model))
    make_constant(model.graph, constants)
    bounds = make_dynamic(model.graph, dynamic)
    model = _prepared(model)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _check_operators(inferred)
    importer = GraphImporter(inferred.graph)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of names that are sanitized, and of shapes that vary
        mod = importer.from_onnx(model.graph, _opset(model))
    main = mod["main"]
    for name in ("params", "num_input"):
        main = main.without_attr(name) if name in (main.attrs or {}) else main
    if bounds:
        main = main.with_attr("tir_var_lower_bound", {name: low for name, (low, _) in bounds.items()})
        main = main.with_attr("tir_var_upper_bound", {n: high for n, (_, high) in bounds.items() if high is not None})
    values = {name: array for name, (_, array) in importer._params.items()}
    mod["main"] = main.with_attr(IMPORTED_FROM, "onnx")
    imported = from_relax(mod, values)
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    return imported.replace(
        output_names=tuple(output.name for output in model.graph.output),
        frozen=frozenset(statistics.intersection(imported.params)),
    )


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions, lists and loops of known length written out, and its constants computed."""
    with_outer_initializers(model)
    widen_four_bits(model)
    without_maps(model)
    changed = True
    while changed:  # loops in loops, and in functions
        model = folded(written_out(folded(model), _known()))
        had_lists = resolved(model)
        model, changed = unrolled(model)
        changed |= had_lists
    as_rows(model)
    with_rows(model)
    return model


def _loaded(path_or_model: Any) -> onnx.ModelProto:
    if isinstance(path_or_model, onnx.ModelProto):
        tensors = (tensor for graph in graphs_of(path_or_model.graph) for tensor in graph.initializer)
        if any(map(onnx.external_data_helper.uses_external_data, tensors)):
            raise ImportModelError(
                "from_onnx: got a model without its weights, which are in other files. Expected its path, or the model "
                "as onnx.load(path) returns it"
            )
        return path_or_model
    kinds = str | os.PathLike
    check_kind("from_onnx", path_or_model, kinds, ImportModelError, "the path of a file, or an onnx.ModelProto")
    path = checked_path("from_onnx", path_or_model, ImportModelError)
    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's errors have no common class
        raise ImportModelError(
            f"from_onnx: {path} cannot be read: {reason(error)}. Expected an ONNX model, with the "
            "files of its weights beside it"
        ) from error


#: Operators whose results ONNX infers other sizes for than they have.
_MISTAKEN_BY_ONNX = frozenset(("STFT",))


def _declare(model: onnx.ModelProto) -> None:
    """Move operators that onnxruntime writes in ONNX's domain, and ONNX does not have there, to Microsoft's."""
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node if node.domain in ("", "ai.onnx"))
    moved = [node for node in nodes if _opset(model) < _OF_ONNXRUNTIME.get(node.op_type, 0)]
    for node in moved:
        node.domain = "com.microsoft"
    if moved and all(one.domain != "com.microsoft" for one in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's operators."""
    return next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that ONNX's checker takes, without the shapes that it says of its results.

    Those of inputs count, and what follows from them: others are out of date once somebody has renamed a dimension.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _declare(copy)
    if not all(value.type.WhichOneof("value") for value in copy.graph.output):  # as onnxscript's may be
        copy = onnx.shape_inference.infer_shapes(copy)
    tensors = [value for value in copy.graph.output if value.type.HasField("tensor_type")]
    bare = {value.name for value in tensors if not value.type.tensor_type.HasField("shape")}
    for value in tensors:
        value.type.tensor_type.shape.SetInParent()  # which the checker asks for, and runtimes do not
    try:
        onnx.checker.check_model(copy)
    except Exception as error:
        raise ImportModelError(
            f"from_onnx: ONNX's checker refuses the model: {reason(error)}. Expected a model that "
            "onnx.checker.check_model takes"
        ) from error
    not_inferred = {
        name
        for node in copy.graph.node
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml") or node.op_type in _MISTAKEN_BY_ONNX
        for name in node.output
    }
    constants = {name for node in copy.graph.node if node.op_type == "Constant" for name in node.output}
    for value in [value for value in copy.graph.value_info if value.name in constants]:
        copy.graph.value_info.remove(value)  # which some exporters call scalars, and are vectors of one
    for value in copy.graph.value_info:
        if value.name not in not_inferred:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()  # how many axes there are counts
    for value in tensors:
        if value.name not in not_inferred or value.name in bare:
            value.type.tensor_type.ClearField("shape")
    for node in (node for graph in graphs_of(copy.graph) for node in graph.node):
        if node.domain == "com.microsoft" and node.op_type in _OF_ONNX:
            node.domain = ""
    for value in copy.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value < 0:  # what some exporters call a dimension that varies
                dim.dim_param = f"{variable_name(value.name)}_{axis}"
    return copy


#: Operators of onnxruntime in ONNX's domain, and from which version on they are ONNX's.
_OF_ONNXRUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}

#: Operators of onnxruntime that are ONNX's: torch's exporter writes them for opsets that do not have them.
_OF_ONNX = frozenset(("GridSample", "Trilu"))

#: Operators that TVM's importer takes for ONNX's.
_MICROSOFT = frozenset(("Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "SkipLayerNormalization"))


def _known() -> frozenset[str]:
    """The operators that have converters."""
    ours = (*CONVERTERS, *RECURRENT, "If", "Loop", "Scan")
    return (frozenset(tvm_onnx._get_convert_map()) - _MICROSOFT) | frozenset(ours)


def _check_operators(model: onnx.ModelProto) -> None:
    """UnsupportedError that lists every operator that is not imported."""
    known = _known()
    missing: Counter[str] = Counter()
    graphs = [*graphs_of(model.graph)]
    values = [value for graph in graphs for value in (*graph.input, *graph.value_info, *graph.output)]
    dtypes = {value.name: value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}
    dtypes |= {tensor.name: tensor.data_type for graph in graphs for tensor in graph.initializer}
    for node in (node for graph in graphs for node in graph.node):
        name = full_name(node)
        what = mistaken(node, dtypes)
        if name not in known or what:
            missing[f"{name} with {what}" if what else name] += 1
    if missing:
        lines = [f"  {name}: {count} node{'s' if count > 1 else ''}" for name, count in sorted(missing.items())]
        raise UnsupportedError(
            "from_onnx: these operators are not imported:\n"
            + "\n".join(lines)
            + "\nExport the model without them, or import the torch module that it was made of: autocast.from_torch"
        )
