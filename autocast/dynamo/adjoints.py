"""Adjoints of a forward call's arguments, by the one table of gradients that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.importer import Importer
from autocast.ir import dims, same_shape, shape_of
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
    answers = row.rule(
        Backward(call, bound if result is None else result, _like(importer, adjoint, bound), wanted, importer.emit)
    )
    return [None if answer is None else importer.emit(answer) for answer in answers]


def _like(importer: Importer, adjoint: Any, result: relax.Expr) -> Any:
    """An adjoint with the sizes of the result whose it is: torch has a number where the forward graph computed it."""
    tensors = isinstance(adjoint, relax.Expr) and shape_of(adjoint) is not None and shape_of(result) is not None
    if not tensors or len(dims(adjoint)) != len(dims(result)) or same_shape(dims(adjoint), dims(result)):
        return adjoint
    return importer.emit(relax.op.reshape(adjoint, relax.ShapeExpr(dims(result))))
