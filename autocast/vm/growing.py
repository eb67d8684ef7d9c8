"""Executables of models that are imported again when a call has sizes that they were not imported for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

from autocast.errors import ImportModelError, InputError, ReimportWarning
from autocast.messages import warn
from autocast.model.value import Model
from autocast.runtime.executable import Executable
from autocast.runtime.signature import Signature
from autocast.runtime.tensors import dtype_name, is_array


class GrowingExecutable:
    """An executable that takes the sizes of its model's examples, and others as soon as a call has them.

    A call whose inputs have other sizes than `main` declares waits for a model in which these dimensions vary, and for
    its code; later calls with any sizes along them run that. All that `Executable` has, this has, too, from the one
    that calls run now. State goes along.

    Parameters
    ----------
    model : Model
        With `reimport`.
    make : callable
        Makes the executable of a model.

    Attributes
    ----------
    model : Model
        What calls run now, to be compiled again.
    """

    def __init__(self, model: Model, make: Callable[[Model], Executable]) -> None:
        self.model, self._make = model, make
        self._executable = make(model)
        self._refused: dict[tuple[tuple[str, int], ...], str] = {}
        self._turn = RLock()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run `main`, as `Executable` does."""
        if named:
            inputs = self.signature.in_places(inputs, named)
        executable = self._executable
        try:
            return executable(*inputs)
        except InputError:
            fitting = self.fitting(inputs)
            if fitting is executable:
                raise
        return fitting(*inputs)

    def fitting(self, inputs: Sequence[Any]) -> Executable:
        """The executable that takes these inputs, which later calls run as well.

        Raises
        ------
        InputError
            They do not fit, and not for their sizes alone; or the model cannot be imported with them varying.
        """
        with self._turn:
            try:
                self._executable.signature.bind(inputs)
            except InputError as error:
                axes = _other_sizes(self._executable.signature, inputs)
                if not axes:
                    raise
                if (places := tuple(axes)) not in self._refused:
                    self._grow(axes, inputs)
                if places in self._refused:
                    raise InputError(
                        f"{error}. But it cannot be imported with that dimension dynamic: {self._refused[places]}"
                    ) from None
            return self._executable

    def _grow(self, axes: dict[tuple[str, int], str], inputs: Sequence[Any]) -> None:
        reimport = self.model.reimport
        assert reimport is not None
        try:
            model = reimport([value.shape for value in inputs])
            executable = self._make(model)
        except ImportModelError as error:
            self._refused[tuple(axes)] = str(error)
            return
        warn(
            f"main: {'; '.join(axes.values())}. The model is imported and compiled again, once, for all sizes along "
            "that; from_torch(..., dynamic={...}) with these dimensions has them vary from the start",
            ReimportWarning,
        )
        if self._executable.state:
            executable.adopt(self._executable.state)
        self._executable, self.model = executable, model.replace(reimport=reimport)

    def wait(self, timeout: float | None = None) -> Executable:
        """The executable that calls run now, when nothing of it is still to be compiled."""
        return self._executable.wait(timeout)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._executable, name)

    def __reduce__(self) -> Any:
        return self._executable.__reduce__()

    def __repr__(self) -> str:
        return f"GrowingExecutable({self._executable!r})"


def _other_sizes(signature: Signature, inputs: Sequence[Any]) -> dict[tuple[str, int], str]:
    """Input and axis where a size is not what is declared, in words; none where something else is wrong."""
    sizes: dict[str, int] = {}
    if len(inputs) != len(signature.inputs):
        return {}
    found = {}
    for spec, value in zip(signature.inputs, inputs, strict=True):
        if not is_array(value) or dtype_name(value) != spec.dtype or len(value.shape) != len(spec.shape):
            return {}
        for axis, (declared, got) in enumerate(zip(spec.shape, value.shape, strict=True)):
            expected = sizes.setdefault(declared, got) if isinstance(declared, str) else declared
            if expected != got:
                found[spec.name, axis] = f"input {spec.name} has size {got} along axis {axis}, imported for {declared}"
    return found
