"""`Trainer`: a model, its loss and its optimizer, compiled into one step that is called with batches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from autocast import amp as mixed
from autocast import vm
from autocast.errors import CheckpointError, DivergedError, InputError, TrainingError
from autocast.messages import check_names
from autocast.model import Model
from autocast.policy import Policy, as_policy, warn_of_unused
from autocast.training import checkpoint
from autocast.training.append_loss import append_loss, check_labels
from autocast.training.batches import Batch, batches_until, tensors_of
from autocast.training.evaluation import evaluation_form
from autocast.training.loss_scaling import DynamicLossScaling
from autocast.training.losses import Loss
from autocast.training.optimizers import Optimizer
from autocast.training.progress import divergence, progress_line
from autocast.training.schedules import rate_at
from autocast.training.step import Options, training_step
from autocast.vm.signature import Signature

#: What other names for options are called here.
_ELSEWHERE = {name: f"it is {ours}" for name, ours in {"lr": "learning_rate", "policy": "amp", "dtype": "amp"}.items()}


class Trainer:
    """Trains a model: one compiled step computes the loss, its gradients, and the updates of everything that learns.

    Parameters
    ----------
    model : Model
        What is trained; its parameters are where training starts. It is not changed.
    loss : Loss
        Of one of its outputs and the labels, the last tensor of a batch.
    optimizer : Optimizer
    learning_rate : float or function
        A number, or a schedule: a function of the number of steps that are done.
    amp : Policy or str, optional
        What to train in mixed precision: a policy, or its text, such as "bfloat16" or "mp1"; None: as the model is.
    **options
        Of `training_step`: `clip_norm`, `loss_scaling` (dynamic by default if `amp` is float16), ...

    Attributes
    ----------
    steps : int
        How many steps are done.
    step_model : Model
        The training step that is compiled, casts and all.

    Raises
    ------
    TrainingError, GradientError
        What `training_step` raises.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        optimizer: Optimizer,
        *,
        learning_rate: float | Callable[[int], float],
        amp: Policy | str | None = None,
        **options: Any,
    ) -> None:
        check_names("Trainer", options, ("learning_rate", "amp", *Options._fields), TrainingError, _ELSEWHERE)
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self.amp = None if amp is None else as_policy(amp)
        self.learning_rate = learning_rate
        self.steps = 0
        if self.amp is not None and self.amp.dtype == "float16":
            options.setdefault("loss_scaling", DynamicLossScaling())
        self.step_model = self._mixed(training_step(model, loss, optimizer, **options))
        *self._inputs, _learning_rate = Signature.of(self.step_model.main, self.step_model.num_input).inputs
        if self.amp is not None and (unused := self.step_model.report.unused):
            warn_of_unused(unused, self._evaluation.report.unused)

    @cached_property
    def executable(self) -> vm.Executable:
        """The compiled step; its `state` is what training has reached."""
        return vm.compile(self.step_model)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of a batch's tensors: those of the model's inputs, then `labels`."""
        return tuple(spec.name for spec in self._inputs)

    def rate(self) -> float:
        """The learning rate of the next step; an InputError where it is no finite number of 0 or more."""
        return rate_at(self.learning_rate, self.steps)

    def step(self, batch: Batch) -> float:
        """Train on one batch; returns its loss, as it was before the update.

        Parameters
        ----------
        batch : sequence or mapping
            (inputs..., labels), or all of them by name (`input_names`): torch tensors or numpy arrays.

        Raises
        ------
        InputError
            The batch does not have the tensors, shapes or dtypes of `input_names`, or a label is no class. Nothing has
            changed then.
        """
        loss = self.executable(*self._arguments(batch), np.asarray(self.rate(), "float32"))
        self.steps += 1
        return float(loss)

    def fit(
        self,
        batches: Iterable[Batch] | Callable[[int], Batch],
        steps: int | None = None,
        *,
        save_to: str | os.PathLike[str] | None = None,
        save_every: int = 100,
        progress: bool = True,
    ) -> list[float]:
        """Train until `steps` steps are done in all, or the batches end; returns the losses of this call's steps.

        Parameters
        ----------
        batches : iterable or function
            Batches for `step`; or a function from the number of steps done (from 0) to the next batch, so that a run
            that was interrupted goes on with the data that it would have seen.
        steps : int, optional
            Where to stop: how many are done then in all, by earlier calls and before the checkpoint, too; needed with
            a function.
        save_to : path, optional
            A checkpoint. If it exists, training goes on from there; it is written every `save_every` steps and at
            the end, so the same call takes up where a killed process left off.
        progress : bool
            Show a line with the loss and the rate.

        Raises
        ------
        DivergedError
            The loss is not finite. The last checkpoint is from before that.
        InputError
            A batch does not fit, or `steps` are done already and there is no checkpoint that says so.
        """
        if save_every < 1:
            raise InputError(f"Trainer.fit: save_every is {save_every}, expected a number of steps: 1 or more")
        if save_to is not None and Path(save_to).exists():
            self.load(save_to)  # a finished run has no steps left, and that is well
        elif steps is not None and steps <= self.steps:
            raise InputError(
                f"Trainer.fit: steps is {steps}, which counts all steps, and {self.steps} are done already; expected "
                f"more: steps={self.steps + max(1, steps)} does {max(1, steps)} more"
            )
        losses: list[float] = []
        with progress_line(progress) as show:
            line = show.add_task("", total=steps, completed=self.steps, loss=math.nan, rate=self.rate())
            for batch in batches_until(batches, steps, lambda: self.steps):
                rate = self.rate()
                losses.append(self.step(batch))
                if not math.isfinite(losses[-1]):
                    raise DivergedError(divergence(self.steps, losses[-1], rate, self.amp))
                show.update(line, completed=self.steps, loss=losses[-1], rate=rate)
                if save_to is not None and self.steps % save_every == 0:
                    self.save(save_to)
        if save_to is not None and losses and self.steps % save_every:
            self.save(save_to)
        return losses

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, each counted once: without dropout, and with running statistics.

        Raises
        ------
        InputError
            There is no batch, or one does not fit.
        """
        params = self.reached(self._evaluation).values()
        losses = [float(self._evaluating(*self._arguments(batch), *params)) for batch in batches]
        if not losses:
            raise InputError("Trainer.evaluate: got no batches, expected at least one; is the iterator used up?")
        return math.fsum(losses) / len(losses)

    def trained(self) -> Model:
        """The model in evaluation form, with copies of the parameters that training has reached."""
        model = evaluation_form(self._model)
        params = {name: tvm.runtime.tensor(tensor.numpy()) for name, tensor in self.reached(model).items()}
        return model.replace(params=params)

    def reached(self, model: Model) -> dict[str, tvm.runtime.Tensor]:
        """The parameters of `model`, another form of what is trained, as they are now, in the dtypes that it stores.

        They are those of the running state: a step changes them. `trained` copies them.
        """
        state = self.executable.state
        return {name: _in_dtype_of(state.get(name, tensor), tensor) for name, tensor in model.params.items()}

    def to_torch(self, module: Any) -> None:
        """Write the parameters that training has reached into `module`, the torch module that was imported.

        Raises
        ------
        InputError
            The module lacks a parameter of the model, or has it with another shape.
        """
        import torch

        reached = self.reached(evaluation_form(self._model))
        tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
        wrong = [
            name
            for name, tensor in reached.items()
            if name in self.executable.state
            and (name not in tensors or tuple(tensors[name].shape) != tuple(tensor.shape))
        ]
        if wrong:
            raise InputError(
                f"Trainer.to_torch: {type(module).__name__} has no parameters {wrong} of the model's shapes, expected "
                "the module (or one like it) that autocast.from_torch imported"
            )
        with torch.no_grad():
            for name, tensor in reached.items():
                if name in self.executable.state:
                    tensors[name].copy_(torch.from_dlpack(tensor))

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from: `tensors` (copies, by name) and `facts`; what `save` writes."""
        tensors = {name: tensor.numpy() for name, tensor in self.executable.state.items()}
        return {"tensors": tensors, "facts": {"steps": self.steps, "optimizer": repr(self._optimizer)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, here or in another process, in any precision that stores the same.

        Raises
        ------
        CheckpointError
            It is of another model or another optimizer. Nothing has changed then.
        """
        checkpoint.check_facts(state)
        facts = state["facts"]
        tensors = {name: np.asarray(tensor) for name, tensor in state["tensors"].items()}
        if facts["optimizer"] != repr(self._optimizer):
            raise CheckpointError(
                f"Trainer: the checkpoint was written with {facts['optimizer']}, expected {self._optimizer!r}; build "
                "the Trainer with that optimizer, or start from the checkpoint's parameters alone"
            )
        checkpoint.check_fits(tensors, self.executable.state)
        self.executable.load_state(tensors)
        self.steps = facts["steps"]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint (safetensors): parameters, optimizer state, random state, steps; atomic, so kill-safe."""
        return checkpoint.save(path, **self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        CheckpointError
            The file cannot be read, or is of another model or optimizer.
        """
        self.load_state_dict(checkpoint.load(path)._asdict())

    def __repr__(self) -> str:
        return f"Trainer({self._optimizer!r}, {self.amp or 'in the precision of the model'}, {self.steps} steps done)"

    @cached_property
    def _evaluation(self) -> Model:
        """The loss in evaluation form: its inputs are the batch, then the parameters."""
        return self._mixed(append_loss(evaluation_form(self._model), self._loss))

    @cached_property
    def _evaluating(self) -> vm.Executable:
        return vm.compile(self._evaluation.mod)

    def _mixed(self, model: Model) -> Model:
        return model if self.amp is None else mixed.apply_policy(model, replace(self.amp, parameters="float32"))

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        """The tensors of a batch, in order. What they are like the executable checks, but for the labels' values."""
        tensors = tensors_of(batch, self._inputs)
        check_labels(self._model, self._loss, tensors[-1])
        return tensors


def _in_dtype_of(tensor: tvm.runtime.Tensor, other: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """`tensor`, a copy of it if it has another dtype than `other`: a step may store its parameters low."""
    is_same = tensor.dtype == other.dtype
    return tensor if is_same else tvm.runtime.tensor(tensor.numpy().astype(other.numpy().dtype))
