"""`Executor`: runs programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autocast import vm
from autocast.compat.names import check_device
from autocast.compat.paddle.static.program import LossOf, Program, Variable, default_main_program
from autocast.errors import InputError, TrainingError, UnsupportedError
from autocast.ir.places import active_region
from autocast.model import Model
from autocast.training import append_loss


class _Compiled(NamedTuple):
    """What a program was when it was compiled, its model or that of a loss, and what runs that."""

    source: Model
    model: Model
    executable: vm.Executable


class Executor:
    """Runs programs on the CPU, and compiles each when it is first run, and again when it has become another model.

    Parameters
    ----------
    place
        None, "cpu" or `paddle.CPUPlace()`; an UnsupportedError that names the devices there are for any other.
    """

    def __init__(self, place: object = None) -> None:
        check_device(place, "place")
        self._compiled: dict[tuple[Program, LossOf | None], _Compiled] = {}

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Variable | str] | None = None,
    ) -> list[np.ndarray]:
        """Run a startup program; or a program, once: a training step after `minimize`.

        Parameters
        ----------
        program
            None: the default main program.
        feed
            numpy arrays or torch tensors by the names of the inputs. Labels that are classes may be (N, 1) or (N,).
        fetch_list
            The outputs and losses to return, by variable or name. A training step has its loss alone.

        Returns
        -------
        list of numpy.ndarray

        Raises
        ------
        TrainingError
            The startup program has not been run, or there is nothing of a name in `fetch_list`.
        InputError
            An input is missing, or has another shape or dtype.
        """
        program = default_main_program() if program is None else program
        if program.started:
            for each in program.started:
                each.is_ready = True
            return []
        if program.startup is not None and not program.is_ready:
            raise TrainingError("Executor.run: the parameters have no values yet; run the startup program first")
        wanted = [program.variable(each) for each in fetch_list or ()]
        feed = dict(feed or {})
        if program.trainer is not None:
            return self._train(program, feed, wanted)
        return [self._value(program, feed, variable) for variable in wanted]

    def _train(self, program: Program, feed: Mapping[str, Any], wanted: Sequence[Variable]) -> list[np.ndarray]:
        assert program.trainer is not None and program.minimized is not None
        others = [variable.name for variable in wanted if variable is not program.minimized]
        if others:
            raise UnsupportedError(
                f"Executor.run: a training step returns its loss {program.minimized.name!r} alone, got {others} in "
                "fetch_list; fetch these from program.clone(for_test=True)"
            )
        labels = _labels(program, program.losses[program.minimized.name][1], feed)
        loss = program.trainer.step((*_inputs(program, feed), labels))
        return [np.asarray(loss, "float32") for _ in wanted]

    def _value(self, program: Program, feed: Mapping[str, Any], variable: Variable) -> np.ndarray:
        arguments, index, of = _inputs(program, feed), 0, None
        if variable in program.outputs:
            index = program.outputs.index(variable)
        else:
            of = program.losses[variable.name][1]
            arguments.append(_labels(program, of, feed))
        model, executable = self._compiled_form(program, of)
        parameters = {**model.params, **program.parameters}
        outputs = executable(*arguments, *(parameters[name] for name in model.params))
        return np.asarray(outputs[index] if isinstance(outputs, tuple | list) else outputs)

    def _compiled_form(self, program: Program, of: LossOf | None) -> tuple[Model, vm.Executable]:
        """The program's model, or the model of a loss of it, and what takes its inputs and then its parameters."""
        known = self._compiled.get((program, of))
        if known is None or known.source is not program.forward:
            model = program.forward
            if of is not None:
                with active_region(of.region):
                    model = append_loss(model, of.loss)
            known = self._compiled[program, of] = _Compiled(program.forward, model, vm.compile(model.mod))
        return known.model, known.executable


def _inputs(program: Program, feed: Mapping[str, Any]) -> list[Any]:
    return [_fed(program, feed, variable) for variable in program.arguments]


def _labels(program: Program, of: LossOf, feed: Mapping[str, Any]) -> Any:
    """The labels that were fed, as (N,) where they are classes of shape (N, 1)."""
    labels = _fed(program, feed, of.label)
    return labels.reshape(labels.shape[:-1]) if of.in_columns and labels.shape[-1] == 1 else labels


def _fed(program: Program, feed: Mapping[str, Any], variable: Variable) -> Any:
    if variable.name not in feed:
        raise InputError(
            f"Executor.run: got feed={sorted(feed)}, which lacks {variable.name!r}; expected {sorted(program.inputs)}"
        )
    return feed[variable.name]
