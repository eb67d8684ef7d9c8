"""The private functions that a training step calls to update its parameters: one for each shape and each group."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tvm import relax

from autocast import ir
from autocast.model.step import GRADIENT, PARAMETER
from autocast.training.optimizers.optimizer import Operands, Optimizer

op = relax.op

SCALAR = relax.TensorType((), "float32")


class Guards(NamedTuple):
    """What else an update may read: 0-d tensors, None where the training step has no use for one.

    Attributes
    ----------
    factor
        float32: multiplies the gradient (clipping, the inverse of a loss scale).
    finite
        bool: where it is false, the update leaves the parameter and its slots as they are.
    """

    factor: relax.Expr | None = None
    finite: relax.Expr | None = None

    @property
    def arguments(self) -> list[relax.Expr]:
        """Those that there are, in the order in which the functions take them."""
        return [guard for guard in self if guard is not None]


def update_function(
    optimizer: Optimizer,
    parameter: relax.TensorType,
    scalars: tuple[str, ...],
    guards: Guards,
    over_ranks: Callable[[relax.BlockBuilder, relax.Expr], relax.Expr] = lambda _, part: part,
) -> relax.Function:
    """One optimizer's update of parameters of one shape.

    Parameters
    ----------
    optimizer : Optimizer
        Without groups: what `Optimizer.of` returns.
    parameter : TensorType
        float32, of the parameter, its gradient and its slots.
    scalars : tuple of str
        The names of what `Optimizer.scalars` computes.
    guards : Guards
        Which of them the function takes; the values are not looked at.
    over_ranks : function
        Emits what a sum over elements is, where each rank has a share of them.

    Returns
    -------
    relax.Function
        `(parameter, gradient, slots..., learning_rate, scalars..., guards...) -> (parameter', slots'...)`, all float32
        but `finite`. It reads and writes each element once, so it can work in place.
    """
    names = (PARAMETER, GRADIENT, *optimizer.slots)
    tensors = {name: relax.Var(name, parameter) for name in names}
    numbers = {name: relax.Var(name, SCALAR) for name in ("learning_rate", *scalars)}
    factor = None if guards.factor is None else relax.Var("factor", SCALAR)
    finite = None if guards.finite is None else relax.Var("finite", relax.TensorType((), "bool"))
    params = [*tensors.values(), *numbers.values(), *Guards(factor, finite).arguments]

    builder = ir.PlacedBuilder()
    builder.place = ir.Place("", "float32")
    with builder.function("update", params, private=True):
        with builder.dataflow():
            gradient = tensors[GRADIENT]
            if factor is not None:
                gradient = builder.emit(op.multiply(gradient, factor), "scaled")
            rate = numbers["learning_rate"]
            if optimizer.learning_rate_factor != 1.0:
                rate = builder.emit(op.multiply(rate, relax.const(optimizer.learning_rate_factor, "float32")), "rate")
            slots = {name: tensors[name] for name in optimizer.slots}
            new = optimizer.update(
                Operands(
                    tensors[PARAMETER],
                    gradient,
                    slots,
                    rate,
                    numbers,
                    lambda expr, name: builder.emit(expr, name),
                    lambda part: over_ranks(builder, part),
                )
            )
            if finite is not None:
                old = (tensors[PARAMETER], *slots.values())
                new = tuple(op.where(finite, after, before) for after, before in zip(new, old, strict=True))
            outputs = [
                builder.emit_output(value, f"new_{name}")
                for value, name in zip(new, (PARAMETER, *optimizer.slots), strict=True)
            ]
        builder.emit_func_output(outputs)
    return builder.get()["update"]


def update_name(optimizer: Optimizer, parameter: relax.TensorType) -> str:
    """`adamw_768x768`."""
    shape = ir.static_shape(relax.Var("parameter", parameter)) or ()
    return f"{type(optimizer).__name__.lower()}_{'x'.join(map(str, shape)) or 'scalar'}"
