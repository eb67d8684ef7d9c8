"""The modules that torch tests itself with, and samples of their inputs; beside them those that its table lacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.opinfo.samples import Sample, first_of, import_table, sample_of
from tests.opinfo.untabled import UNTABLED, Call


class Module:
    """One row of torch's table or of ours, in evaluation or in training mode."""

    def __init__(self, name: str, calls: Callable[[bool], Iterator[Call]], *, training: bool) -> None:
        self.name = f"{name}.training" if training else name
        self.calls, self.training = calls, training

    def samples(self, count: int | None) -> list[Sample]:
        """The first `count` samples and two of empty tensors; None: all of them."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return first_of([self._sample(*call) for call in self.calls(self.training)], count)

    def _sample(self, module: nn.Module, args: Any, kwargs: Any) -> Sample:
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            with torch.no_grad():
                module(*args, **kwargs)  # it learns its sizes
        return sample_of(module.train(self.training), tuple(args), dict(kwargs))


def _tabled(info: Any, training: bool) -> Iterator[Call]:
    """The calls in a row of torch's table."""
    for row in info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=training):
        made, given = row.constructor_input, row.forward_input
        if given is not None:
            yield Call(info.module_cls(*made.args, **made.kwargs), given.args, given.kwargs)


def modules(*parts: str) -> Iterator[Module]:
    """The modules whose name has one of `parts` in it, if there are any; in training mode, too, where it differs."""
    rows: dict[str, tuple[Callable[[bool], Iterator[Call]], bool]] = {
        info.name: (partial(_tabled, info), info.train_and_eval_differ)
        for info in import_table("common_modules", "module_db")
    }
    rows |= {name: (lambda _, calls=calls: calls(), True) for name, calls in UNTABLED.items()}  # type: ignore[misc]
    for name, (calls, differs) in rows.items():
        for training in (False, True) if differs else (False,):
            module = Module(name, calls, training=training)
            if not parts or any(part in module.name for part in parts):
                yield module
