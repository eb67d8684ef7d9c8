"""A model with its loss and optimizer, as RAF's helper appends them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from autocast.errors import InputError
from autocast.model.value import Model
from autocast.training.append_loss import append_loss
from autocast.training.losses import CrossEntropy
from autocast.training.optimizers import LAMB, LANS, SGD, Adam, AdamW, Optimizer
from autocast.training.optimizers.functions import SCALAR
from autocast.training.optimizers.optimizer import number
from autocast.training.schedules import rate_at
from autocast.training.step import join

#: RAF's optimizers and learning rates.
_OPTIMIZERS: dict[str, tuple[Optimizer, float]] = {
    "sgd": (SGD(momentum=0.01), 0.1),
    "adam": (Adam(), 1e-3),
    "adamw": (AdamW(), 1e-3),
    "lamb": (LAMB(), 1e-3),
    "lans": (LANS(), 1e-3),
}


def append_loss_n_optimizer(
    model: Model, args: Sequence[Any], out_shape: Sequence[int], y_true: Any, optimizer: str = "sgd"
) -> Model:
    """The model that trains `model` for classification, one step each time it is called.

    Parameters
    ----------
    model : Model
        Its first output are logits. It is not changed.
    args : sequence
        Its inputs; as the types are in the model already, they are not looked at.
    out_shape : sequence of int
        The shape of the logits: (..., classes).
    y_true : tensor
        Class indices, int64, one for each row of logits, in any shape.
    optimizer : str
        "sgd" (learning rate 0.1, momentum 0.01, as RAF has it), "adam", "adamw", "lamb" or "lans" (learning rate
        0.001).

    Returns
    -------
    Model
        Takes (dy, inputs..., labels), with `dy` the adjoint of the loss, a 0-d float32 tensor: 1 for the gradients of
        the loss itself. Its result is the loss, the mean cross-entropy.

    Raises
    ------
    InputError
        There is no such optimizer, or the number of labels is not that of the logits' rows.
    """
    if optimizer not in _OPTIMIZERS:
        raise InputError(
            f"append_loss_n_optimizer: optimizer is {optimizer!r}, expected one of {', '.join(_OPTIMIZERS)}; "
            "autocast.training.training_step takes any other"
        )
    rows, shape = tuple(out_shape)[:-1], tuple(y_true.shape)
    if prod(rows) != prod(shape):
        raise InputError(
            f"append_loss_n_optimizer: y_true has shape {shape}, expected {prod(rows)} class indices, one for each "
            f"row of logits of shape {tuple(out_shape)}; try one_hot_torch({prod(rows)}, {out_shape[-1]})"
        )
    rule, rate = _OPTIMIZERS[optimizer]
    forward = append_loss(model, CrossEntropy(), labels=relax.TensorType(shape, "int64"))
    return append_optimizer(forward, rule, rate)


def append_optimizer(model: Model, optimizer: Optimizer, learning_rate: float) -> Model:
    """The model that makes one step of `optimizer` each time it is called.

    Parameters
    ----------
    model : Model
        Its only result is a loss, a 0-d float32 tensor.
    optimizer : Optimizer
    learning_rate : float
        The same for all steps.

    Returns
    -------
    Model
        Takes (dy, inputs...), with `dy` the adjoint of the loss; its result is the loss.

    Raises
    ------
    InputError
        The model has other results, or the learning rate is no finite number of 0 or more.
    """
    if model.num_results != 1 or not _is_scalar(model.main.ret_ty):
        raise InputError(
            f"append_optimizer: the model gives {model.main.ret_ty}, expected one number, R.Tensor((), 'float32'), as "
            "a loss is; try append_loss_n_optimizer, or a module that computes its loss"
        )
    rate = number(rate_at(learning_rate, 0))
    seed = relax.Var("dy", SCALAR)
    inputs = (seed, *model.main.params[: model.num_input])
    return join(model, optimizer, rate, inputs=inputs, seed=seed)


def _is_scalar(result: tvm.ir.Type) -> bool:
    first = result.fields[0] if hasattr(result, "fields") else result
    return isinstance(first, relax.TensorType) and first.ndim == 0 and str(first.dtype) == "float32"
