"""Adjoints of a forward call's arguments, by the one table of gradients that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.importing.importer import Importer
from autocast.training.gradients import Backward, get_gradient


def adjoints(
    importer: Importer,
    call: relax.Expr,
    adjoint: Any,
    needs: Sequence[bool] | None = None,
    result: relax.Expr | None = None,
) -> Sequence[Any]:
    """The adjoints of a forward call's arguments, by its row in the table of gradients.

    The call is bound, and nothing computes it unless the rule reads its result, which may be given.
    """
    if any(isinstance(argument, relax.Call) for argument in call.args):
        raise ImportModelError("its forward operator is several, of which only the last would be differentiated")
    bound = importer.emit(call)
    call = importer.block_builder.lookup_binding(bound)
    row = get_gradient(call.op.name)
    if row is None or row.rule is None:
        raise ImportModelError(f"{call.op.name} has no gradient")
    wanted = tuple(needs or [True] * len(call.args))
    answers = row.rule(Backward(call, bound if result is None else result, adjoint, wanted, importer.emit))
    return [None if answer is None else importer.emit(answer) for answer in answers]
