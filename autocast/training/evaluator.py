"""What a trainer has reached: means of its loss, and of metrics, over batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, TypeAlias

import tvm

from autocast import vm
from autocast.errors import InputError
from autocast.messages import check_kind, shown
from autocast.model import Model
from autocast.runtime.tensors import from_tensor, kind_of
from autocast.training.append_loss import append_loss
from autocast.training.batches import Batch
from autocast.training.losses import Loss
from autocast.training.parallel.ranks import Ranks
from autocast.training.reached import on_host

#: A function of outputs (a tensor, or a tuple of them) and labels to a number.
Metric: TypeAlias = Callable[[Any, Any], Any]


class Evaluator:
    """Computes the loss of a model in evaluation form, whose parameters are arguments.

    Parameters
    ----------
    model : Model
    loss : Loss
    prepare : function
        What is done to a model before it is compiled: AutoCast, or nothing.
    device, mode
        Where and how it is run, as `vm.compile` takes them.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        prepare: Callable[[Model], Model],
        device: str = "cpu",
        mode: str | None = None,
    ) -> None:
        self._plain, self._loss, self._prepare = model, loss, prepare
        self._device = device
        self._compile = partial(vm.compile, device=device, mode=mode)

    @cached_property
    def model(self) -> Model:
        """The loss of a batch: inputs, labels, then parameters."""
        return self._prepare(append_loss(self._plain, self._loss))

    @cached_property
    def _losses(self) -> vm.Executable:
        return self._compile(self.model.mod)

    @cached_property
    def _losses_and_outputs(self) -> vm.Executable:
        return self._compile(self._prepare(append_loss(self._plain, self._loss, outputs=True)).mod)

    def mean(
        self,
        batches: Iterable[Batch],
        arguments_of: Callable[[Batch], tuple[Any, ...]],
        params: Iterable[tvm.runtime.Tensor],
        metrics: Mapping[str, Metric] | None,
        ranks: Ranks,
    ) -> Any:
        """The mean loss over batches, or with `metrics` a dictionary of it and them; see `Trainer.evaluate`.

        Of all ranks' batches, where there are several.
        """
        _check(batches, metrics)
        executable = self._losses if metrics is None else self._losses_and_outputs
        params = executable.arguments(tuple(params))  # on its device, once
        sums: defaultdict[str, float] = defaultdict(float)
        examples = 0.0
        for batch in batches:
            arguments = arguments_of(batch)
            labels = arguments[-1]
            result = executable(*arguments, *params)
            loss, *outputs = [result] if metrics is None else result
            count = int(labels.shape[0]) if len(labels.shape) else 1
            examples += count
            sums["loss"] += count * float(loss)
            seen = tuple(outputs) if self._device == "cpu" else tuple(_beside(labels, output) for output in outputs)
            for name, metric in (metrics or {}).items():
                value = metric(seen[0] if len(seen) == 1 else seen, labels)
                sums[name] += count * _number(name, value)
        names = ["loss", *(metrics or {})]
        examples, *totals = ranks.summed([examples, *(sums[name] for name in names)])
        if not examples:
            raise InputError("Trainer.evaluate: got no batches, expected at least one; is the iterator used up?")
        means = {name: total / examples for name, total in zip(names, totals, strict=True)}
        return means["loss"] if metrics is None else means


def _check(batches: Any, metrics: Any) -> None:
    """InputError unless these are batches and, by names of their own, functions."""
    check_kind("Trainer.evaluate", batches, Iterable, InputError, "batches: a list of them, or a torch DataLoader")
    legal = isinstance(metrics, Mapping) and "loss" not in metrics and all(map(callable, metrics.values()))
    if metrics is not None and not legal:
        raise InputError(
            f"Trainer.evaluate: metrics is {shown(metrics)}, expected functions of (outputs, labels) by names other "
            "than 'loss'; try {'accuracy': lambda outputs, labels: (outputs.argmax(-1) == labels).mean()}"
        )


def _beside(labels: Any, output: Any) -> Any:
    """An output as the labels of its batch are, for functions of both: outputs of torch's devices stay there."""
    return from_tensor(on_host(output), kind_of([labels]))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"Trainer.evaluate: the metric {name!r} returned {shown(value)}, expected one number for a batch; try its "
            "mean"
        ) from None
