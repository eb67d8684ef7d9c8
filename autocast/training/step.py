"""One training step as one model: forward, loss, backward and the updates of everything that learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autocast import ir
from autocast.errors import TrainingError
from autocast.ir import with_functions
from autocast.messages import check_value, is_count, is_number
from autocast.model.step import STEP
from autocast.model.value import IMPORTED_FROM, Model
from autocast.runtime import collectives
from autocast.training import loss_scaling as scaling
from autocast.training.accumulation import ACCUMULATED, OF_MODEL, add_accumulated, is_accumulator
from autocast.training.append_loss import append_loss
from autocast.training.building import emit_body, new_function, parameter, zeros
from autocast.training.differentiate import differentiate
from autocast.training.losses import Loss
from autocast.training.masters import with_masters
from autocast.training.optimizers.functions import SCALAR
from autocast.training.optimizers.optimizer import Optimizer
from autocast.training.options import NO_OPTIONS, Options
from autocast.training.parallel.average import average_over_ranks
from autocast.training.parallel.options import DataParallel
from autocast.training.parallel.options import parse as parse_parallel
from autocast.training.parallel.synchronize import synchronize_batch_norm
from autocast.training.parallel.zero import share_type
from autocast.training.paths import find_paths, inline_calls, straight_line
from autocast.training.recompute import recompute as recompute_regions
from autocast.training.updates import slot_name, update

op = relax.op


def training_step(
    model: Model,
    loss: Loss,
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    loss_scaling: float | scaling.LossScaling | None = None,
    recompute: Sequence[str] = (),
    parallel: DataParallel | str | None = None,
    accumulate: int = 1,
) -> Model:
    """The model that trains `model` by one step each time it is called.

    It is differentiated as it stands; hand the result to `autocast.amp.autocast` to train in mixed precision.

    Parameters
    ----------
    model : Model
        What is trained: its floating-point parameters, but for those in `model.frozen`, those that it updates itself (a
        BatchNorm's statistics) and those that the loss does not depend on. Low ones become float32 masters, of which
        the model reads a cast; a policy with `fp32_params=False` stores these low again.
    loss : Loss
        Of one of its outputs and labels.
    optimizer : Optimizer
    clip_norm : float, optional
        All gradients are scaled down together so that their norm is at most this.
    loss_scaling : float or DynamicLossScaling, optional
        What the loss is multiplied by before it is differentiated; for float16. A step whose gradients are not finite
        then changes neither parameters nor the optimizer's state.
    recompute : sequence of str
        Globs of the torch modules whose activations are computed again in the backward pass instead of being kept, such
        as "bert.encoder.layer.*": less memory, more time. See `autocast.training.recompute`.
    parallel : DataParallel or str, optional
        "data": the loss, the gradients and the running statistics of BatchNorm are means over all processes that call
        the step at the same time, each with a batch of its own; see docs/many_machines.md.
    accumulate : int
        How many batches the gradients of one update are means of. If there are more than one, the step is called with
        the last of them; for the others there is `autocast.training.accumulation.accumulation_step`.

    Returns
    -------
    Model
        Takes (inputs..., labels, learning_rate), the learning rate a 0-d float32 tensor; its result is the loss of the
        batch before the update, 0-d float32, not scaled. After the model's parameters, which keep their names, come the
        optimizer's: "optimizer_step" (0-d int64, the updates made), "SLOT/PARAMETER" for each slot; then
        "loss_scale" and what it needs; and with `accumulate` "accumulated/NAME", the sums of the loss and of each
        gradient. All are replaced by a call, in the executable that makes it.

    Raises
    ------
    TrainingError
        The loss does not fit the model, nothing can be trained, or an option is out of range.
    GradientError
        An operator between a parameter and the loss has no gradient.
    """
    _check_kinds(model, loss, optimizer)
    check_value("training_step", "clip_norm", clip_norm, _is_norm, TrainingError, "a finite norm above 0, or None")
    check_value("training_step", "recompute", recompute, _are_globs, TrainingError, "a list of globs: ['encoder.*']")
    check_value("training_step", "accumulate", accumulate, _is_positive, TrainingError, "a count of batches: 1 or more")
    rate = relax.Var("learning_rate", SCALAR)
    options = Options(clip_norm, scaling.parse(loss_scaling), tuple(recompute), parse_parallel(parallel), accumulate)
    forward = append_loss(_inlined(model), loss)
    _check_one_update(model)
    return join(forward, optimizer, rate, inputs=(*_inputs(forward), rate), options=options)


def _check_kinds(model: object, loss: object, optimizer: object) -> None:
    """TrainingError unless these are a Model, a loss and an optimizer of ours; torch's have the same names."""
    for value, kind, wanted in (
        (model, Model, "a Model: autocast.from_torch(module, example_args)"),
        (loss, Loss, "a loss of autocast.training: CrossEntropy(), MSE()"),
        (optimizer, Optimizer, "an optimizer of autocast.training: AdamW(weight_decay=0.01), SGD(momentum=0.9)"),
    ):
        if not isinstance(value, kind) or type(value) is kind is not Model:
            own = value if isinstance(value, type) else type(value)
            got = f"the class {own.__module__}.{own.__name__}" if isinstance(value, type) else f"a {_path(own)}"
            raise TrainingError(f"training_step: got {got}, expected {wanted}")


def _check_one_update(model: Model) -> None:
    """TrainingError where a torch module writes into a parameter that the optimizer would replace as well."""
    written = sorted(set(model.updated) - model.frozen) if IMPORTED_FROM in model.main.attrs else []
    if written:
        raise TrainingError(
            f"training_step: the module writes into {', '.join(written)} when it runs, as an embedding with max_norm "
            "does, and the optimizer would replace it, too; expected parameters that only one of both changes. Leave "
            "it to the module, by requires_grad_(False), or train by torch.compile(module, backend='autocast')"
        )


def _path(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_norm(value: Any) -> bool:
    return value is None or (is_number(value) and value > 0)


def _is_positive(value: Any) -> bool:
    return is_count(value, 1)


def _are_globs(value: Any) -> bool:
    return not isinstance(value, str) and all(isinstance(glob, str) for glob in value)


def join(
    forward: Model,
    optimizer: Optimizer,
    learning_rate: relax.Expr,
    *,
    inputs: Sequence[relax.Var],
    seed: relax.Var | None = None,
    options: Options = NO_OPTIONS,
) -> Model:
    """A model that returns the loss of `forward` (its only result), and updates what the loss depends on.

    Parameters
    ----------
    learning_rate : Expr
        0-d float32: one of `inputs`, or a literal.
    inputs : sequence of relax.Var
        The inputs of the result: those of `forward` and others, in any order.
    seed : relax.Var, optional
        One of `inputs`, 0-d float32: what all gradients are multiplied by.
    options : Options
    """
    low = [name for name, var in _trained(forward).items() if ir.dtype_of(var) != "float32"]
    forward = with_masters(forward, low) if low else forward
    trained = _trained(forward)
    optimizer.check_groups(trained)
    state = _State(forward, optimizer, trained, options)
    params = [*_parameters(forward), *state.variables.values()]
    if options.loss_scaling is not None:
        seed = state.variables["loss_scale"]

    if options.parallel is not None and options.parallel.sync_batch_norm:
        forward = synchronize_batch_norm(forward, collectives.count())
    whole = forward.main
    attrs = {**dict(whole.attrs), "num_input": len(inputs)}
    names = ("loss", *forward.updated)

    def copy(builder: relax.BlockBuilder) -> dict[str, relax.Expr]:
        return dict(zip(names, emit_body(builder, whole), strict=True))

    extended = new_function([*inputs, *params], attrs, copy, forward.mod)
    differentiated = differentiate(extended["main"], list(trained.values()), seed=seed)
    differentiated = recompute_regions(differentiated, extended["main"], options.recompute)

    if options.accumulate > 1:
        summed = dict(zip((0, *range(len(names), len(names) + len(trained))), state.accumulators.values(), strict=True))
        differentiated = add_accumulated(differentiated, summed)
    if options.parallel is not None:
        # What is added up over batches has rows of all of them: no gradient is sent by the rows of the last.
        bucket_mib, count = options.parallel.bucket_mib, collectives.count() if options.accumulate == 1 else 1
        differentiated = average_over_ranks(differentiated, len(names), bucket_mib, options.shares, count)

    def build(builder: ir.PlacedBuilder) -> dict[str, relax.Expr]:
        results = emit_body(builder, differentiated)
        kept, gradients = results[: -len(trained)], results[-len(trained) :]
        olds = dict(zip(forward.params, differentiated.params[len(inputs) :], strict=False))
        moved = {name: (olds[name], new) for name, new in zip(forward.updated, kept[1:], strict=True)}
        updates = update(builder, optimizer, trained, gradients, learning_rate, state.variables, moved, options)
        for name, var in state.accumulators.items():
            updates[name] = op.zeros(var.ty.shape, "float32")
        if options.accumulate > 1:
            kept[0] = builder.emit(op.multiply(kept[0], relax.const(1.0 / options.accumulate, "float32")), "loss")
        return {"loss": kept[0], **{name: updates[name] for name in (*forward.updated, *state.updated)}}

    positions = {name: position for position, name in enumerate((*forward.params, *state.values))}
    attrs["updates"] = [positions[name] for name in (*forward.updated, *state.updated)]
    if options.accumulate > 1:
        attrs[OF_MODEL] = len(forward.updated)
    mod = new_function(differentiated.params, attrs, build, forward.mod)
    return forward.replace(mod=mod, params={**forward.params, **state.values})


class _State:
    """What a training step keeps from call to call, besides the model's own: variables and first values, by name."""

    def __init__(
        self,
        forward: Model,
        optimizer: Optimizer,
        trained: Mapping[str, relax.Var],
        options: Options,
    ) -> None:
        loss_scaling = options.loss_scaling
        arrays = {STEP: np.array(0, "int64")}
        self.values = {name: tvm.runtime.tensor(array) for name, array in arrays.items()}
        for name, var in trained.items():
            for slot in optimizer.of(name).slots:
                shape = ir.static_shape(relax.Var("part", share_type(var.ty, options.shares))) or ()
                self.values[slot_name(slot, name)] = zeros(shape, "float32")
        scale = {} if loss_scaling is None else loss_scaling.initial_state
        self.values |= {name: tvm.runtime.tensor(array) for name, array in scale.items()}
        if options.accumulate > 1:
            shapes = {"loss": (), **{name: ir.static_shape(var) or () for name, var in trained.items()}}
            self.values |= {f"{ACCUMULATED}{name}": zeros(shape, "float32") for name, shape in shapes.items()}
        if clash := sorted(self.values.keys() & forward.params.keys()):
            raise TrainingError(
                f"training_step: the model has parameters called {clash}, as the step's own state is; expected the "
                "model itself, not a training step"
            )
        self.variables = {name: parameter(name, value.shape, str(value.dtype)) for name, value in self.values.items()}
        self.accumulators = {name: var for name, var in self.variables.items() if is_accumulator(name)}
        constant = scale if isinstance(loss_scaling, scaling.StaticLossScaling) else {}
        self.updated = [name for name in (*trained, *self.values) if name not in constant]


def _inlined(model: Model) -> Model:
    """The model without calls of private functions: gradients are those of operators."""
    mod = with_functions(model.mod, {"main": inline_calls(model.main, model.mod)})
    return model.replace(mod=relax.transform.Normalize()(mod))


def _inputs(model: Model) -> list[relax.Var]:
    return list(model.main.params[: model.num_input])


def _parameters(model: Model) -> list[relax.Var]:
    return list(model.main.params[model.num_input :])


def _trained(forward: Model) -> dict[str, relax.Var]:
    """The parameters that training changes, by name."""
    excluded = forward.frozen | set(forward.updated)
    floats = {
        name: var
        for name, var in zip(forward.params, _parameters(forward), strict=True)
        if name not in excluded and ir.dtype_of(var) in (*ir.FLOATS, "float64")
    }
    if not floats:
        raise TrainingError(
            f"training_step: none of the model's {len(forward.params)} parameters can be trained; expected one that is "
            "floating-point and not in model.frozen. Import a module whose parameters require gradients"
        )
    bindings, (loss, *_) = straight_line(forward.main)
    wanted = find_paths(bindings, list(floats.values()), loss).wanted
    trained = {name: var for name, var in floats.items() if var in wanted}
    if double := [name for name, var in trained.items() if ir.dtype_of(var) == "float64"]:
        raise TrainingError(
            f"training_step: the parameters {', '.join(double[:4])}{', ...' if double[4:] else ''} are float64, and "
            "what is trained is float32; expected parameters of 32 bits or 16. Import module.float(), or leave them as "
            "they are by requires_grad_(False)"
        )
    return trained
