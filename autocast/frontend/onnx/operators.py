"""What of ONNX's operators TVM's importer mistakes: found by ONNX's own node tests, and refused by what a node says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

#: The dtypes that kernels are made for.
DTYPES = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("BFLOAT16", "FLOAT16", "FLOAT", "DOUBLE", "BOOL"),
        *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    )
)
FLOATS = frozenset((TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE))

_Attributes = Mapping[str, Any]

#: Operator -> (when, of its attributes, the dtypes of its inputs and how many inputs it has; what is not imported).
_MISTAKEN: dict[str, tuple[Callable[[_Attributes, Sequence[int | None], int], bool], str]] = {
    "RoiAlign": (lambda a, types, count: a.get("mode") == b"max", "mode='max'"),
    "TopK": (lambda a, types, count: TensorProto.UINT64 in types, "uint64 tensors"),
}

#: Operators on lists of tensors, and on tensors that may be none.
LISTS = frozenset(
    (
        *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SplitToSequence"),
        *(f"Sequence{what}" for what in ("At", "Construct", "Empty", "Erase", "Insert", "Length")),
    )
)


def full_name(node: NodeProto) -> str:
    """The name of a node's operator, with the domain before it unless that is ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


_OF_VALUES = "a value that is no tensor"

#: Operators on maps.
_MAPS = frozenset(("CastMap", "DictVectorizer"))
_OF_MAPS = "a map in place of a tensor"


def mistaken(node: NodeProto, dtypes: Mapping[str, int]) -> str:
    """What a node says that is not imported faithfully; empty where it is.

    Parameters
    ----------
    node
    dtypes
        ONNX's numbers of the dtypes of values, by name, as far as they are inferred.
    """
    if node.op_type in LISTS:
        return _OF_VALUES
    if node.op_type in _MAPS:
        return _OF_MAPS
    types = [dtypes.get(name) for name in node.input if name]
    for type in (*types, *(dtypes.get(name) for name in node.output)):
        if type is not None and type not in DTYPES:
            return f"{TensorProto.DataType.Name(type).lower()} tensors"
    when, what = _MISTAKEN.get(node.op_type, (None, ""))
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return what if when is not None and when(attributes, types, len(types)) else ""


#: Operator -> an input that TVM's importer has to know the values of, and what it says.
SAID_BY_INPUTS: dict[str, tuple[int, str]] = {
    "AffineGrid": (1, "size"),
    **{
        f"Reduce{what}": (1, "axes")
        for what in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
