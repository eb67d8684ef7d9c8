"""A model followed by its loss, and whether labels fit both."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from autocast import ir
from autocast.errors import InputError, TrainingError
from autocast.messages import check_kind, is_whole
from autocast.model.value import Model
from autocast.runtime.tensors import dtype_name, is_array, to_numpy, to_tensor
from autocast.training.building import emit_body, new_function
from autocast.training.losses import Loss
from autocast.training.randomness import seed_dropout

op = relax.op


def append_loss(model: Model, loss: Loss, *, labels: relax.TensorType | None = None, outputs: bool = False) -> Model:
    """The model followed by its loss.

    Parameters
    ----------
    model : Model
        Its updates (a BatchNorm's statistics) are kept, and its dropout drops.
    loss : Loss
    labels : TensorType, optional
        What the labels are instead of `loss.labels(prediction)`: another shape of as many elements.
    outputs : bool
        Return the model's outputs after the loss.

    Returns
    -------
    Model
        Takes (inputs..., labels), the last named "labels"; its result is the loss, a 0-d float32 tensor.

    Raises
    ------
    TrainingError
        The model has no such output, it is not a floating-point tensor of known rank, or an input is called "labels".
    """
    check_kind("append_loss", model, Model, TrainingError, "a Model: autocast.from_torch(module, example_args)")
    check_kind("append_loss", loss, Loss, TrainingError, "a loss of autocast.training: CrossEntropy(), MSE()")
    check_kind("append_loss", labels, relax.TensorType | None, TrainingError, "a relax.TensorType for the labels")
    model = seed_dropout(model)
    main = model.main
    inputs, params = main.params[: model.num_input], main.params[model.num_input :]
    if "labels" in model.input_names:
        raise TrainingError(
            f"append_loss: the model has an input 'labels' already ({', '.join(model.input_names)}); expected a model "
            "without a loss of its own. Import it without labels"
        )
    position = _position(model, loss)
    expected = _checked_labels(model, loss, position)
    if labels is not None and not _as_many(labels, expected):
        raise TrainingError(
            f"append_loss: the labels are {labels}, expected as many elements as {expected} has; leave labels= out"
        )
    variable = relax.Var("labels", labels or expected)

    def build(builder: relax.BlockBuilder) -> dict[str, relax.Expr]:
        results = emit_body(builder, main)
        prediction = results[position]
        if ir.dtype_of(prediction) != "float32":
            prediction = builder.emit(op.astype(prediction, "float32"))
        given = variable if labels is None else builder.emit(op.reshape(variable, expected.shape))
        value = builder.emit(loss.compute(*loss.arranged(builder.emit, prediction, given)))
        kept = {f"output{at}": results[at] for at in range(model.num_results)} if outputs else {}
        return {
            "loss": value,
            **kept,
            **dict(zip(model.updated, results[len(results) - len(model.updated) :], strict=True)),
        }

    attrs = {**dict(main.attrs), "num_input": len(inputs) + 1}
    attrs.pop("written", None)  # a batch is not what the model makes of it
    mod = new_function([*inputs, variable, *params], attrs, build, model.mod)
    return model.replace(mod=mod, output_names=("loss", *(model.output_names if outputs else ())))


def _as_many(labels: relax.TensorType, expected: relax.TensorType) -> bool:
    """Whether tensors of these types may have as many elements as each other, for all that is known."""
    sizes = [ir.static_shape(relax.Var("labels", type)) for type in (labels, expected)]
    return None in sizes or math.prod(sizes[0] or ()) == math.prod(sizes[1] or ())


def _position(model: Model, loss: Loss) -> int:
    names = list(model.output_names)
    if isinstance(loss.output, str) and loss.output in names:
        return names.index(loss.output)
    if is_whole(loss.output) and 0 <= int(loss.output) < model.num_results:
        return int(loss.output)
    listed = f" ({', '.join(names)})" if names else ""
    raise TrainingError(
        f"append_loss: the model has no output {loss.output!r}; expected one of its {model.num_results}{listed}. "
        f"Try {type(loss).__name__}(output=0)"
    )


def check_labels(model: Model, loss: Loss, labels: Any) -> None:
    """Raise an InputError where labels are integers, but no class of `model`; what they are else is not looked at."""
    prediction = _prediction(model, _position(model, loss))
    sizes = ir.shape_of(prediction) or ()
    classes = sizes[getattr(loss, "axis", -1)]
    if not is_array(labels):
        return
    if labels.shape[-1:] != (1,) and (remedy := loss.other_labels(tuple(sizes), tuple(labels.shape))):
        got = f"{dtype_name(labels)}[{', '.join(map(str, labels.shape))}]"
        raise InputError(
            f"{type(loss).__name__}: the labels are {got}, expected {loss.labels(prediction)} for a prediction "
            f"{prediction.ty}. Try {remedy}"
        )
    if dtype_name(labels) == "int64" and isinstance(classes, int):
        loss.check_values(to_numpy(to_tensor(labels)), classes)


def _prediction(model: Model, position: int) -> relax.Var:
    result = model.main.ret_ty
    return relax.Var("prediction", result.fields[position] if isinstance(result, tvm.ir.TupleType) else result)


def _checked_labels(model: Model, loss: Loss, position: int) -> relax.TensorType:
    prediction = _prediction(model, position)
    if ir.dtype_of(prediction) not in ir.FLOATS or not ir.shape_of(prediction):
        raise TrainingError(
            f"append_loss: output {loss.output!r} of the model is {prediction.ty}, expected a tensor of float32, "
            f"float16 or bfloat16 numbers, of rank 1 or more. Try {type(loss).__name__}(output=...)"
        )
    return loss.labels(prediction)
