"""Programs: handles onto models, which are changed in place as Paddle's are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import tvm
from tvm import relax, tirx

from autocast.errors import TrainingError, UnsupportedError
from autocast.frontend import from_torch
from autocast.ir.places import active_region, current_region
from autocast.messages import nearest
from autocast.model import Model
from autocast.training import Loss, Trainer
from autocast.training.evaluation import evaluation_form
from autocast.training.optimizers import Optimizer

#: What a dimension is called that Paddle writes None or -1: the first axis is every input's batch.
_BATCH = "batch"

#: The size of such a dimension in an example input: torch specializes what is traced with 0 or 1.
_EXAMPLE = 2


@dataclass(frozen=True, eq=False)
class Variable:
    """An input of a program, an output of its module, or its loss.

    Attributes
    ----------
    name : str
        What `feed` and `fetch_list` may say in place of the variable.
    shape : tuple
        -1 where a size is known at run time only.
    dtype : str
    program : Program
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    program: Program = field(repr=False)


@dataclass(frozen=True)
class LossOf:
    """A loss of a program: of which output, with which labels, and the region in which it was written.

    `in_columns`: the labels are classes of shape (N, 1).
    """

    loss: Loss
    label: Variable
    region: str
    in_columns: bool


class Program:
    """A main program: inputs, a torch module, perhaps a loss and what trains it. Or a startup program: whom it starts.

    Attributes
    ----------
    model : Model or None
        What the module was imported as, and what mixed precision has made of it since.
    trainer, minimized : Trainer and Variable, or None
        What a run does after `minimize`, and the loss that this was called with.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, Variable] = {}
        self.arguments: tuple[Variable, ...] = ()
        self.outputs: tuple[Variable, ...] = ()
        self.losses: dict[str, tuple[Variable, LossOf]] = {}
        self.module: torch.nn.Module | None = None
        self.model: Model | None = None
        self.trainer: Trainer | None = None
        self.minimized: Variable | None = None
        self.startup: Program | None = None
        self.started: list[Program] = []
        self.is_ready = False

    def add_input(self, name: str, shape: Sequence[int | None], dtype: str) -> Variable:
        """A new input, fed by its name."""
        sizes = tuple(-1 if size is None else size for size in shape)
        self.inputs[name] = Variable(name, sizes, dtype, self)
        return self.inputs[name]

    def add_module(self, module: torch.nn.Module, inputs: Sequence[Variable]) -> Variable | tuple[Variable, ...]:
        """The outputs of a torch module, imported as it stands."""
        if self.model is not None:
            raise UnsupportedError(
                "torch_module: the program has a module already; expected one. Make one torch module of both"
            )
        parameters = list(inspect.signature(module.forward).parameters)
        dynamic: dict[str, list[tuple[str, int]]] = {}
        examples = []
        for parameter, variable in zip(parameters, inputs, strict=False):
            sizes = [_EXAMPLE if size == -1 else size for size in variable.shape]
            examples.append(torch.zeros(sizes, dtype=getattr(torch, variable.dtype)))
            for axis, size in enumerate(variable.shape):
                if size == -1:
                    dynamic.setdefault(f"{parameter}_{axis}" if axis else _BATCH, []).append((parameter, axis))
        self.model = from_torch(module, examples, dynamic=dynamic or None)
        self.module, self.arguments = module, tuple(inputs)
        self.outputs = tuple(
            Variable(f"output_{index}", _sizes(type), str(type.dtype), self)
            for index, type in enumerate(_results(self.model))
        )
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def add_loss(self, loss: Loss, prediction: Variable, label: Variable) -> Variable:
        """A loss of one of the outputs, in the region that is active."""
        if prediction not in self.outputs:
            raise UnsupportedError(
                f"{type(loss).__name__}: got {prediction!r}, expected what static.nn.torch_module returned; compute "
                "what comes between in the module"
            )
        loss = replace(loss, output=self.outputs.index(prediction))
        variable = Variable(f"loss_{len(self.losses)}", (), "float32", self)
        in_columns = label.dtype == "int64" and len(label.shape) == len(prediction.shape)
        self.losses[variable.name] = variable, LossOf(loss, label, current_region(), in_columns)
        return variable

    def minimize(self, loss: Variable, startup: Program | None, rule: Optimizer, **options: Any) -> None:
        """Make a run of this program a training step; `options` are a `Trainer`'s."""
        if startup is not None:
            startup.starts(self)
        self.minimized, of = self.losses[loss.name]
        with active_region(of.region):
            self.trainer = Trainer(self.forward, of.loss, rule, **options)

    def starts(self, program: Program) -> None:
        """This is the startup program of `program`, which it makes ready to run."""
        if program.startup is not None:
            program.startup.started.remove(program)
        program.startup = self
        self.started.append(program)

    def clone(self, for_test: bool = False) -> Program:
        """A program of the same module, without what trains it; in evaluation form `for_test`."""
        other = Program()
        other.__dict__.update(
            {
                **self.__dict__,
                "trainer": None,
                "minimized": None,
                "startup": None,
                "started": [],
                "inputs": {},
                "losses": {},
            }
        )
        moved = {variable: replace(variable, program=other) for variable in (*self.inputs.values(), *self.outputs)}
        other.inputs = {name: moved[variable] for name, variable in self.inputs.items()}
        other.arguments = tuple(moved[variable] for variable in self.arguments)
        other.outputs = tuple(moved[variable] for variable in self.outputs)
        for name, (variable, of) in self.losses.items():
            other.losses[name] = replace(variable, program=other), replace(of, label=moved[of.label])
        if for_test and self.model is not None:
            other.model = evaluation_form(self.model)
        if self.startup is not None:
            self.startup.starts(other)
        return other

    @property
    def forward(self) -> Model:
        """The model; a TrainingError where there is none yet."""
        if self.model is None:
            raise TrainingError("Program: it has no layers; try paddle.static.nn.torch_module(module, *inputs) in it")
        return self.model

    @property
    def trained_by(self) -> Trainer | None:
        """What trains the module: this program, or another with the same startup program."""
        known = self.startup.started if self.startup is not None else [self]
        return next((each.trainer for each in known if each.trainer is not None and each.module is self.module), None)

    @property
    def parameters(self) -> dict[str, tvm.runtime.Tensor]:
        """The values of the model's parameters as they are now, each in the dtype that the model stores."""
        trainer = self.trained_by
        return self.forward.params if trainer is None else trainer.reached(self.forward)

    def variable(self, wanted: Variable | str) -> Variable:
        """The output or loss that is called so; a TrainingError with the nearest names where there is none."""
        name = wanted if isinstance(wanted, str) else wanted.name
        known = {variable.name: variable for variable in (*self.outputs, *(pair[0] for pair in self.losses.values()))}
        if name not in known:
            raise TrainingError(
                f"Program: nothing to fetch is called {name!r}; expected an output of its module or a loss: "
                f"{nearest(name, known)}"
            )
        return known[name]


_main, _startup = Program(), Program()


def default_main_program() -> Program:
    """The program that `data` and layers go into."""
    return _main


def default_startup_program() -> Program:
    """The startup program of that program."""
    return _startup


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Inside, `main_program` is the default one, which `startup_program` starts."""
    global _main, _startup
    before = _main, _startup
    _main, _startup = main_program, _startup if startup_program is None else startup_program
    try:
        yield
    finally:
        _main, _startup = before


def data(name: str, shape: Sequence[int | None], dtype: str = "float32") -> Variable:
    """An input of the default program: None or -1 is a size that runs may choose."""
    if _main.startup is not _startup:
        _startup.starts(_main)
    return _main.add_input(name, shape, dtype)


def _results(model: Model) -> list[relax.TensorType]:
    """The types of a model's outputs; what replaces parameters comes after them."""
    result = model.main.ret_ty
    fields = list(result.fields) if isinstance(result, tvm.ir.TupleType) else [result]
    return fields[: model.num_results]


def _sizes(type: relax.TensorType) -> tuple[int, ...]:
    return tuple(int(size) if isinstance(size, tirx.IntImm) else -1 for size in type.shape.values)
