"""Gradients of calls that are left to torch: by torch's own rules, in a call of torch that runs the operator again."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax
from tvm.script import relax as R

from autocast.errors import GradientError
from autocast.ir import is_op
from autocast.ir.foreign import torch_operator
from autocast.runtime.torch_calls import BACKWARD, Request
from autocast.training.gradients.registry import Adjoint, Backward, gradient

#: The dtypes that torch computes gradients of.
_FLOATS = ("float32", "bfloat16", "float16", "float64")


def _call(b: Backward) -> list[Adjoint]:
    """torch's autograd, by the tensors that are on the way to what is trained: of others it may know no derivative."""
    operator = torch_operator(b.call)
    if not operator:
        raise GradientError("foreign code; write the computation with Relax operators")
    returns = is_op(b.call, "relax.call_pure_packed")
    given = b.call.args[1:] if returns else b.call.args[1].fields
    text, *passed = given
    request = Request.parse(str(text.value))
    places = [
        place
        for place, tensor in enumerate(passed[: request.tensors])
        if str(tensor.ty.dtype) in _FLOATS and b.wants(tensor)
    ]
    adjoints = list(b.adjoint) if isinstance(b.adjoint, tuple | list) else [b.adjoint]
    known = [place for place, adjoint in enumerate(adjoints) if adjoint is not None]
    asked = replace(request, adjoints=known, wanted=places)
    types = [passed[place].ty for place in places]
    values = [
        adjoint if isinstance(adjoint, relax.Var) else b.emit(adjoint) for adjoint in map(adjoints.__getitem__, known)
    ]
    call = relax.op.call_dps_packed(
        f"{BACKWARD}{operator}",
        relax.Tuple([R.str(asked.text()), *passed, *values]),
        out_ty=types[0] if len(types) == 1 else types,
    )
    whole = b.emit(call)
    answers = [whole] if len(types) == 1 else [relax.TupleGetItem(whole, i) for i in range(len(types))]
    fields: list[Adjoint] = [None] * len(given)
    for place, answer in zip(places, answers, strict=True):
        fields[1 + place] = answer
    return [None, *fields] if returns else [None, tuple(fields)]


RULES = tuple(
    gradient(f"relax.{name}", _call, why="torch's own, where the call is torch's; else there is none")
    for name in ("call_dps_packed", "call_pure_packed")
)
