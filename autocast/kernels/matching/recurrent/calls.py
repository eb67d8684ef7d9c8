"""Which recurrence over time a call is."""

from __future__ import annotations

from tvm import relax

from autocast.ir import FLOATS, dims, op_name, storage
from autocast.kernels.specs.recurrent import Recurrence, Tensor
from autocast.kernels.specs.sizes import DimensionNames
from autocast.operators import Kind, is_kind


def declined(call: relax.Call) -> str | None:
    """Why no kernel computes the recurrence `call`; None where one does."""
    others = {storage(operand) for operand in call.args} - set(FLOATS)
    return f"it reads {', '.join(sorted(others))}" if others else None


def has_recurrent_kernel(call: relax.Expr) -> bool:
    """Whether `call` is a recurrence that a kernel computes."""
    return is_kind(call, Kind.RECURRENCE) and declined(call) is None


def recurrence_of(call: relax.Call) -> Recurrence:
    """The spec of a call of a recurrence."""
    names = DimensionNames()

    def tensor(expr: relax.Expr) -> Tensor:
        return tuple(names.dim(dim) for dim in dims(expr)), storage(expr)

    cell, *backward = str(op_name(call)).rpartition(".")[2].split("_")
    return Recurrence(
        cell,
        tuple(map(tensor, call.args)),
        tuple(tensor(relax.Var("result", field)) for field in call.ty.fields),
        bool(call.attrs.reverse),
        str(call.attrs.activation) if cell == "rnn" else "tanh",
        bool(backward),
    )
