"""RAF's model: a handle onto a `Model`, which has a mode, and whose parameters calls may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tvm

from autocast.compat.names import check_device, missing
from autocast.compat.raf.symbols import RecordedLoss, Symbol
from autocast.errors import InputError, UnsupportedError
from autocast.messages import check_kind
from autocast.model import Model
from autocast.training.append_loss import append_loss
from autocast.vm import Executable, compile

#: TVM's passes of RAF's `FuseDialect` and `FuseTVM`. What one kernel of ours computes is not fused by them.
FUSION = ("FuseOps", "FuseTIR")

_INSTEAD = {
    "parameters": "state() has all tensors by name",
    "eval": "infer_mode() is RAF's name of it",
    "train": "train_mode() is RAF's name of it",
}


class FrameworkModel:
    """What RAF's functions take and give: a model that is in training mode or in inference mode.

    What `Model` has, this has, too: `report`, `mod`, `script()` and others are those of the model in its mode.

    Parameters
    ----------
    model : Model
        The model.
    other : callable, optional
        Makes the model in the mode that it is not in now; None: both are the same.
    is_train : bool
        The mode of `model`.
    """

    def __init__(self, model: Model, other: Callable[[], Model] | None = None, is_train: bool = True) -> None:
        self._models = {is_train: model}
        self._other, self._is_train = other, is_train
        self._executables: dict[tuple[bool, int, bool], Executable] = {}
        self._last: Executable | None = None

    @property
    def value(self) -> Model:
        """The model in its mode, with the parameters that calls have reached."""
        if self._is_train not in self._models:
            (model,) = self._models.values()
            self._models[self._is_train] = self._other() if self._other is not None else model
        model = self._models[self._is_train]
        state = self._last.state if self._last is not None else {}
        reached = {name: value for name, value in state.items() if name in model.params}
        return model.replace(params={**model.params, **reached}) if reached else model

    def train_mode(self, recursive: bool = True) -> None:
        """Dropout drops and BatchNorm takes statistics of the batch, from now on."""
        self._is_train = True

    def infer_mode(self, recursive: bool = True) -> None:
        """Dropout and BatchNorm do what they do after training, from now on."""
        self._is_train = False

    def to(self, *, device: str | None = None, dtype: str | None = None) -> None:
        """Nothing, for the device "cpu".

        Raises
        ------
        UnsupportedError
            Another device, or a dtype: models have those of their torch modules.
        """
        check_device(device, "device")
        if dtype is not None:
            raise UnsupportedError(
                f"FrameworkModel.to: got dtype={dtype!r}, expected None, as models have the dtypes of their modules; "
                "try module.to(dtype) before it is imported, or raf.amp.autocast(model)"
            )

    def state(self) -> dict[str, torch.Tensor]:
        """All parameters by name, as calls have made them; torch tensors that share their memory."""
        return {name: torch.from_dlpack(value) for name, value in self.value.params.items()}

    def record(self, *args: Any, **kwargs: Any) -> Symbol:
        """What stands for the model's first result, from which a loss is made: see `sym`."""
        self.value.bind_inputs(*args, **kwargs)
        return Symbol(lambda result, labels: result)

    def __add__(self, loss: Symbol) -> FrameworkModel:
        """The model that computes a loss of its result, with the loss's labels as its last input."""
        if not isinstance(loss, Symbol) or loss.labels is None:
            raise InputError(
                f"FrameworkModel + {loss!r}: expected a loss of the recorded result and of labels, such as "
                "sym.nll_loss(labels, sym.log_softmax(model.record(x)))"
            )
        return FrameworkModel(append_loss(self.value, RecordedLoss(symbol=loss)))

    def _internal(self, *args: Any, **kwargs: Any) -> Record:
        self.value.bind_inputs(*args, **kwargs)
        return Record(self)

    def executable(self, device: str = "cpu", opt_level: int = 3, disable_fusion: bool = False) -> Executable:
        """The compiled model; if it updates its parameters, it goes on from what earlier calls made of them."""
        check_device(device, "device")
        key = self._is_train, opt_level, disable_fusion
        if key not in self._executables:
            with tvm.transform.PassContext(disabled_pass=list(FUSION) if disable_fusion else []):
                self._executables[key] = compile(self.value.replace(), opt_level=opt_level)
        executable = self._executables[key]
        if self._last is not None and self._last is not executable:
            reached = self._last.state
            executable.load_state({name: reached[name] for name in executable.state.keys() & reached.keys()})
        self._last = executable
        return executable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._models.get(self._is_train) or self.value
        return run(self.executable(), model.bind_inputs(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not hasattr(Model, name) and name not in Model.__dataclass_fields__:
            known = [*vars(type(self)), *vars(Model), *Model.__dataclass_fields__]
            raise missing("FrameworkModel", name, known, instead=_INSTEAD)
        return getattr(self.value, name)

    def __repr__(self) -> str:
        return f"FrameworkModel({self.value!r}, {'training' if self._is_train else 'inference'} mode)"


@dataclass(frozen=True)
class Record:
    """What RAF traces of a model: `mod` is the model itself, with its parameters."""

    mod: FrameworkModel

    @property
    def named_params(self) -> dict[str, torch.Tensor]:
        """The model's parameters by name."""
        return self.mod.state()


def run(executable: Executable, args: Any) -> Any:
    """A call's results: those of a model that updates its parameters as a tuple, even if there is one alone."""
    result = executable(*executable.signature.in_order(args))
    return (result,) if executable.state and not isinstance(result, tuple) else result


def model_of(model: FrameworkModel | Model) -> Model:
    """The Model that a handle stands for; a Model is its own."""
    check_kind("raf", model, FrameworkModel | Model, InputError, "a FrameworkModel: raf.frontend.from_pytorch(...)")
    return model.value if isinstance(model, FrameworkModel) else model


def handle_of(model: FrameworkModel | Model) -> FrameworkModel:
    """A handle onto a Model; a handle is its own."""
    return model if isinstance(model, FrameworkModel) else FrameworkModel(model_of(model))
