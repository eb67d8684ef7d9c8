"""Torch operators that are imported as a user's: `autocast.operators.register(..., torch="audio::snake")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.operators import OPERATORS, TABLE, OperatorRow

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter


def registered(node: fx.Node) -> OperatorRow | None:
    """The row of the operator that `node` is imported as; None where no user's is."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = node.target._schema.name
    return next((row for row in TABLE.values() if row.torch == name), None)


def translate_registered(importer: ExportedProgramImporter, row: OperatorRow, node: fx.Node) -> relax.Var:
    """The call of a user's operator: tensors are its arguments, in order, and all else attributes by name.

    Raises
    ------
    ImportModelError
        The operator takes other tensors, or a number is known only when the model runs.
    """
    schema = node.target._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, node.args, strict=False)} | dict(node.kwargs)
    values: dict[str, Any] = {
        argument.name: given.get(argument.name, argument.default_value if argument.has_default_value() else None)
        for argument in schema
    }
    tensors = [importer.env[value] for value in values.values() if isinstance(value, fx.Node)]
    expected = OPERATORS[row.name].arguments
    if any(not isinstance(tensor.ty, relax.TensorType) for tensor in tensors) or len(tensors) > len(expected):
        got = ", ".join(str(tensor.ty) for tensor in tensors)
        raise ImportModelError(f"it is given ({got}), but {row.name} was registered with {', '.join(expected)}")
    attributes = {name: value for name, value in values.items() if value is not None and not isinstance(value, fx.Node)}
    return importer.block_builder.emit(OPERATORS[row.name](*tensors, **attributes))
