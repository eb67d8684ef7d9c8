"""`Trainer`: a model, its loss and its optimizer, compiled into one step that is called with batches.

One class; half of its lines are what its public methods say of themselves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import tvm

from autocast import amp as mixed
from autocast import vm
from autocast.errors import DivergedError, InputError, TrainingError
from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.messages import check_names, check_value, checked_path, is_count
from autocast.model import Model
from autocast.policy import Policy, as_policy, warn_of_unused
from autocast.training.accumulation import accumulation_step, groups_of
from autocast.training.append_loss import check_labels
from autocast.training.batches import Batch, tensors_of
from autocast.training.callbacks import Callback, Progress
from autocast.training.evaluation import evaluation_form
from autocast.training.evaluator import Evaluator, Metric
from autocast.training.loss_scaling import DynamicLossScaling, LossScaling
from autocast.training.losses import Loss
from autocast.training.optimizers import Optimizer
from autocast.training.options import ELSEWHERE, Options
from autocast.training.parallel.options import DataParallel, check_place
from autocast.training.parallel.options import parse as parse_parallel
from autocast.training.parallel.ranks import Ranks, ranks_of
from autocast.training.parallel.shards import shard_of, whole_shard_of
from autocast.training.parallel.sharing import shared
from autocast.training.plan import Plan, check_plan
from autocast.training.progress import divergence, progress_line
from autocast.training.reached import copy_to, in_dtype_of, on_host
from autocast.training.schedules import rate_at
from autocast.training.state import TrainingState
from autocast.training.step import training_step
from autocast.vm.signatures import signature_of
from autocast.vm.torch_devices import checked_device


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
    parallel : DataParallel or str, optional
        "data": several processes train together, each on its share of the batches; by itself where torchrun started
        them, "none" where they shall not. See docs/many_machines.md.
    device : str
        Where steps are run, as `autocast.vm.compile` takes it: by our kernels on this machine's CPU, or by torch's on
        "torch:cpu", "cuda" and whatever torch has. Checkpoints are the same.
    mode : str, optional
        How, as `autocast.vm.compile` takes it: "eager" runs torch's kernels one by one.
    **options
        Of `training_step`: `clip_norm`, `loss_scaling` (dynamic by default if `amp` is float16), `accumulate`, ...

    Attributes
    ----------
    model : Model
        What was given; of several processes, with the parameters that rank 0 has.
    ranks : Ranks
        Which of how many processes this is: `ranks.rank`, `ranks.count`.
    steps : int
        How many steps are done.
    step_model : Model
        The training step that is compiled, casts and all.
    loss_scaling : LossScaling or float, optional
        As in `training_step`.
    accumulate : int
        How many batches each step takes.

    Raises
    ------
    TrainingError, GradientError
        What `training_step` raises; or several processes train on a device of torch's other than "torch:cpu".
    UnsupportedError
        There is no such device.
    RankError
        The processes do not find each other, or have different models, options or versions.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        optimizer: Optimizer,
        *,
        learning_rate: float | Callable[[int], float],
        amp: Policy | str | None = None,
        parallel: DataParallel | str | None = None,
        device: str = "cpu",
        mode: str | None = None,
        **options: Any,
    ) -> None:
        check_names("Trainer", options, ("learning_rate", "amp", *Options._fields), TrainingError, ELSEWHERE)
        self.model = model
        self._parallel = parse_parallel(ranks_of(parallel))
        self._loss = loss
        self._optimizer = optimizer
        self._options = dict(options)
        self.device, self._mode = checked_device(device), mode
        self.amp = None if amp is None else as_policy(amp)
        self.learning_rate = learning_rate
        self.steps = 0
        if self.amp is not None and self.amp.dtype == "float16":
            options.setdefault("loss_scaling", DynamicLossScaling())
        self.loss_scaling: LossScaling | float | None = options.get("loss_scaling")
        self.accumulate: int = options.get("accumulate", 1)
        if not callable(learning_rate) or isinstance(learning_rate, type):
            rate_at(learning_rate, 0)
        self.ranks = Ranks() if self._parallel is None else Ranks.connected()
        if self.ranks.count > 1:
            check_place(self._parallel, self.ranks.count, self.device, self.amp)
            rate = learning_rate if is_dataclass(learning_rate) or not callable(learning_rate) else "a function"
            self.model = shared(model, self.ranks, [loss, optimizer, self.amp, self._parallel, options, rate])
            options["parallel"] = self._parallel
        self.step_model = self._mixed(training_step(self.model, loss, optimizer, **options))
        *self._inputs, _learning_rate = signature_of(self.step_model.main, self.step_model.num_input).inputs
        if self.amp is not None and (unused := self.step_model.report.unused):
            warn_of_unused(unused, self._evaluator.model.report.unused)

    def set_amp(self, amp: Policy | str | None, **options: Any) -> None:
        """Train in another precision than the Trainer was made for, from the first step on.

        Parameters
        ----------
        amp : Policy or str, optional
            As in the constructor, where `learning_rate` and those **options stand that are not given here.

        Raises
        ------
        TrainingError
            The step is compiled already, so that its state would be lost; or what the constructor raises. Nothing has
            changed then.
        """
        if "executable" in vars(self):
            raise TrainingError(
                f"Trainer.set_amp: the step is compiled, and {self.steps} steps are done; expected a Trainer that has "
                "not trained. Make another one with amp=..., and hand it this one's state_dict()"
            )
        where = {"parallel": self._parallel or "none", "device": self.device, "mode": self._mode}
        options = {"learning_rate": self.learning_rate, **where, **self._options, **options}
        vars(self).update(vars(Trainer(self.model, self._loss, self._optimizer, amp=amp, **options)))

    @cached_property
    def executable(self) -> vm.Executable:
        """The compiled step; its `state` is what training has reached."""
        return vm.compile(self.step_model, self.device, mode=self._mode)

    @cached_property
    def accumulation(self) -> vm.Executable | None:
        """The program that adds the gradients of one batch to those of others, on the state of `executable`; None where
        each step takes one batch."""
        if self.accumulate == 1:
            return None
        program = vm.compile(accumulation_step(self.step_model), self.device, mode=self._mode)
        program.share(self.executable)
        return program

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of a batch's tensors: those of the model's inputs, then `labels`."""
        return tuple(spec.name for spec in self._inputs)

    @property
    def loss_scale(self) -> float:
        """What the next step multiplies its loss by before it is differentiated; 1 without loss scaling."""
        if self.loss_scaling is None:
            return 1.0
        scale = self.executable.state.get("loss_scale", self.step_model.params["loss_scale"])
        return float(on_host(scale).numpy())

    def rate(self) -> float:
        """The learning rate of the next step; an InputError where it is no finite number of 0 or more."""
        return rate_at(self.learning_rate, self.steps)

    def step(self, *batches: Batch) -> float:
        """Train on one batch; returns its loss, as it was before the update.

        Parameters
        ----------
        *batches : sequence or mapping
            (inputs..., labels), or all of them by name (`input_names`): torch tensors or numpy arrays. As many as
            `accumulate` says: the update is by the mean of their gradients, and the loss is the mean of theirs.

        Raises
        ------
        InputError
            A batch does not have the tensors, shapes or dtypes of `input_names`, a label is no class, or there are more
            batches, or fewer. Nothing has changed then.
        """
        if len(batches) != self.accumulate:
            raise InputError(
                f"Trainer.step: got {len(batches)} batches and accumulate={self.accumulate}, expected that many: "
                f"step({', '.join(['batch', 'another', '...'][: self.accumulate])})"
            )
        rate = np.asarray(self.rate(), "float32")
        arguments = [(*self._arguments(batch), rate) for batch in batches]
        loss = self._accumulated(arguments) if self.accumulation else self.executable(*arguments[0])
        self.steps += 1
        return float(loss)

    def fit(
        self,
        batches: Iterable[Batch] | Callable[[int], Batch],
        steps: int | None = None,
        *,
        epochs: int | None = None,
        save_to: str | os.PathLike[str] | None = None,
        save_every: int = 100,
        progress: bool = True,
        callbacks: Sequence[Callback] = (),
    ) -> list[float]:
        """Train until `steps` steps or `epochs` epochs are done in all; returns the losses of this call's steps.

        Parameters
        ----------
        batches : iterable or function
            Batches for `step`, a torch DataLoader of them, say; or a function from the number of steps done (from 0) to
            the next batch, so that a run that was interrupted goes on with the data that it would have seen. Of several
            processes each takes every N-th batch, as `DataParallel.shard` says. With `accumulate`, as many that follow
            each other are one step; those at the end that are too few for one are not used. A function is asked for the
            batch `step * accumulate`, and those after it.
        steps : int, optional
            Where to stop: how many are done then in all, by earlier calls and before the checkpoint, too; needed with
            a function.
        epochs : int, optional
            How many passes over `batches` are done then in all: what is done already counts by the length of `batches`,
            and is passed over. With neither, one pass is made; with both, the earlier end counts.
        save_to : path, optional
            A checkpoint. If it exists, training goes on from there; it is written every `save_every` steps and at
            the end, so the same call takes up where a killed process left off.
        progress : bool
            Show a line with the loss, the rate and the time that is left.
        callbacks : sequence of functions
            Called after every step with its `Progress`: steps, epoch, loss and rate; `TensorBoard("runs")` is one.

        Warns
        -----
        EndOfDataWarning
            The batches end before `steps` are done.

        Raises
        ------
        DivergedError
            The loss is not finite. The last checkpoint is from before that.
        InputError
            A batch does not fit, or `steps` are done already and there is no checkpoint that says so.
        """
        check_plan(batches, steps, epochs)
        for name, value, is_legal, expected in (
            ("save_every", save_every, lambda count: is_count(count, 1), "a number of steps: 1 or more"),
            ("progress", progress, lambda flag: isinstance(flag, bool), "True or False"),
            ("callbacks", callbacks, lambda given: all(map(callable, given)), "a list of functions of a Progress"),
        ):
            check_value("Trainer.fit", name, value, is_legal, InputError, expected)
        if self._shards:
            batches = shard_of(batches, self.ranks)
        if self.accumulate > 1:
            batches = groups_of(batches, self.accumulate)
        plan = Plan(batches, steps, epochs)
        if save_to is not None and self._exists(checked_path("Trainer.fit: save_to", save_to, InputError)):
            self.load(save_to)  # a finished run has no steps left, and that is well
        else:
            plan.check_remaining(self.steps)
        losses: list[float] = []
        with progress_line(progress and self.ranks.rank == 0) as show:
            total = plan.steps_in_all(self.steps)
            line = show.add_task("", total=total, completed=self.steps, loss=math.nan, rate=self.rate())
            for epoch, batch in plan.remaining(lambda: self.steps):
                rate = self.rate()
                losses.append(self.step(*(batch if self.accumulate > 1 else (batch,))))
                if not math.isfinite(losses[-1]):
                    raise DivergedError(divergence(self.steps, losses[-1], rate, self.amp))
                show.update(line, completed=self.steps, loss=losses[-1], rate=rate)
                for callback in callbacks:
                    callback(Progress(self.steps, epoch, losses[-1], rate))
                if save_to is not None and self.steps % save_every == 0:
                    self.save(save_to)
        if save_to is not None and losses and self.steps % save_every:
            self.save(save_to)
        return losses

    @overload
    def evaluate(self, batches: Iterable[Batch]) -> float: ...

    @overload
    def evaluate(self, batches: Iterable[Batch], metrics: Mapping[str, Metric]) -> dict[str, float]: ...

    def evaluate(
        self, batches: Iterable[Batch], metrics: Mapping[str, Metric] | None = None
    ) -> float | dict[str, float]:
        """The mean loss over batches: without dropout, and with running statistics.

        Parameters
        ----------
        batches : iterable
            As `step` takes them. Each counts by its examples: the first size of its labels. Of several processes each
            takes every N-th, and all return the same means.
        metrics : dict of str to function, optional
            What else is averaged: functions of a batch's outputs (a tensor, or a tuple of them) and labels to a number.

        Returns
        -------
        float, or with `metrics` dict of str to float
            The loss; or "loss" and the metrics.

        Raises
        ------
        InputError
            There is no batch, or one does not fit.
        """
        evaluator = self._evaluator
        own = whole_shard_of(batches, self.ranks) if self._shards else batches
        return evaluator.mean(own, self._arguments, self.reached(evaluator.model).values(), metrics, self.ranks)

    def trained(self) -> Model:
        """The model in evaluation form, with copies of the parameters that training has reached."""
        model = evaluation_form(self.model)
        params = {name: tvm.runtime.tensor(tensor.numpy()) for name, tensor in self.reached(model).items()}
        return model.replace(params=params)

    def reached(self, model: Model) -> dict[str, tvm.runtime.Tensor]:
        """The parameters of `model`, another form of what is trained, as they are now, in the dtypes that it stores.

        They are those of the running state: a step changes them, unless it runs on an accelerator. `trained` copies
        them.
        """
        state = self._state.own
        return {name: in_dtype_of(state.get(name, tensor), tensor) for name, tensor in model.params.items()}

    def to_torch(self, module: Any) -> None:
        """Write the parameters and buffers that training has reached into `module`, the torch module that was imported.

        Raises
        ------
        InputError
            The module lacks a parameter of the model, or has it with another shape.
        """
        own = self.executable.state.keys() - {RANDOM_STATE}
        copy_to(module, {name: tensor for name, tensor in self.reached(self.model).items() if name in own})

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from: `tensors` (copies, by name) and `facts`; what `save` writes.

        Of several processes with `zero=1` all have to ask for it together: each has a share.
        """
        return self._state.whole(self.steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, here or in another process, in any precision that stores the same.

        Raises
        ------
        CheckpointError
            It is of another model or another optimizer. Nothing has changed then.
        """
        self.steps = self._state.load(state)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint (safetensors): parameters, optimizer state, random state, steps; atomic, so kill-safe.

        Of several processes rank 0 writes it, and the others wait; it loads into any number of them.
        """
        self._state.save(path, self.steps)
        return Path(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint; of several processes rank 0 reads it, and tells the others.

        Raises
        ------
        CheckpointError
            The file cannot be read, or is of another model or optimizer.
        """
        self.steps = self._state.read(path)

    def __repr__(self) -> str:
        return f"Trainer({self._optimizer!r}, {self.amp or 'in the precision of the model'}, {self.steps} steps done)"

    @cached_property
    def _state(self) -> TrainingState:
        divided = self._parallel is not None and self._parallel.zero > 0
        optimizer = repr(self._optimizer)
        return TrainingState(self.executable, self.model.params, optimizer, self.ranks, divided=divided)

    def _accumulated(self, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """The loss of a step on several batches, after all of them were seen to fit."""
        for each in arguments:
            self.executable.signature.check_rows(each, self.executable.signature.bind(each))
        try:
            for each in arguments[:-1]:
                self.accumulation(*each)  # type: ignore[misc]
            return self.executable(*arguments[-1])
        except BaseException:
            self._state.forget_sums()
            raise

    @property
    def _shards(self) -> bool:
        return self._parallel is not None and self._parallel.shard

    def _exists(self, path: Path) -> bool:
        """Whether rank 0 sees a file."""
        return bool(self.ranks.same_array(np.array(path.exists(), "uint8")))

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(evaluation_form(self.model), self._loss, self._mixed, self.device, self._mode)

    def _mixed(self, model: Model) -> Model:
        return model if self.amp is None else mixed.apply_policy(model, replace(self.amp, parameters="float32"))

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        """The tensors of a batch, in order. What they are like the executable checks, but for the labels' values."""
        tensors = tensors_of(batch, self._inputs)
        check_labels(self.model, self._loss, tensors[-1])
        return tensors
