"""Executables of models that were never seen: torch's kernels answer until the model's own are compiled."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from threading import Event, RLock
from typing import Any

import tvm_ffi

from autocast.errors import BackgroundWarning
from autocast.runtime.executable import Executable
from autocast.runtime.signature import Signature
from autocast.runtime.status import Status
from autocast.runtime.tensors import from_tensor, kind_of, to_tensor
from autocast.runtime.workers import Worker
from autocast.runtime.writing import check_writable, write_back
from autocast.vm.generic import Generic

#: Seconds that the compiler waits for a first call to begin: its start, an import of TVM, would take half of the cores.
_GRACE = 1.0

#: Seconds between two looks at whether there was one.
_LOOK = 0.02


class StartingExecutable:
    """An executable that answers at once, and becomes that of the compiled model between two of its calls.

    Until then calls run torch's kernels. All that `Executable` has, this has, too: what needs the compiled code
    (`export`, `program`, profiles and memory traces) waits for it. If the compiler fails there is one
    BackgroundWarning, and calls go on as before.

    Parameters
    ----------
    signature : Signature
        Of the model.
    generic : Generic
        The model, run by torch.
    compiled : function
        Answers the executable of the compiled model; called in a thread of its own. It is given an event, and raises
        when that is set: the process ends.
    """

    def __init__(self, signature: Signature, generic: Generic, compiled: Callable[[Event], Executable]) -> None:
        self.signature = signature
        self._calls = generic.calls
        self._generic: Generic | None = generic
        self._compiled: Future[Executable] = Future()
        self._executable: Executable | None = None
        self._turn = RLock()
        self._called = Event()  # or waited for
        Worker(partial(self._compile, compiled)).start()

    def _compile(self, compiled: Callable[[Event], Executable], stopping: Event) -> None:
        self._let_a_call_pass(stopping)
        try:
            self._compiled.set_result(compiled(stopping))
        except BaseException as error:
            self._compiled.set_exception(error)
            if stopping.is_set():
                return
            warnings.warn(
                f"compile: the model could not be compiled in the background: {type(error).__name__}: {error}. Its "
                "calls go on with torch's kernels; vm.compile(model, mode='fast') compiles it here, and raises what is "
                "wrong",
                BackgroundWarning,
                stacklevel=2,
            )

    def _let_a_call_pass(self, stopping: Event) -> None:
        """Wait for a first call, if one begins soon, and for its end."""
        deadline = time.monotonic() + _GRACE
        while not (self._called.is_set() or stopping.wait(_LOOK)) and time.monotonic() < deadline:
            pass
        if not stopping.is_set():
            with self._turn:
                pass

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run `main`, as `Executable` does."""
        if named:
            inputs = self.signature.in_places(inputs, named)
        with self._turn:
            executable = self._now()
            if executable is None:
                self.signature.bind(inputs)
                check_writable(self.signature.written, inputs)
                arguments = [to_tensor(value) for value in inputs]
                assert self._generic is not None
                outputs = from_tensor(self._generic(*arguments), kind_of(inputs))
                write_back(self.signature.written, arguments, inputs)
                self._called.set()
                return outputs
        return executable(*inputs)

    @property
    def status(self) -> Status:
        """What computes the model's operators now."""
        executable = self._now()
        if executable is not None:
            return executable.status
        return Status(self._calls, 0, failed=self._compiled.done() and self._compiled.exception() is not None)

    def wait(self, timeout: float | None = None) -> Executable:
        """Wait until the model is compiled: the executable that calls run from now on.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        CompileError
            The model cannot be compiled.
        TimeoutError
            It is not, after these seconds.
        """
        self._called.set()
        if not futures.wait([self._compiled], timeout).done:
            raise TimeoutError(
                f"wait: after {timeout:g} seconds the model is not compiled ({self.status}), and calls go on with "
                "torch's kernels. Wait longer, or without a timeout"
            )
        self._compiled.result()
        executable = self._now()
        assert executable is not None
        return executable

    @property
    def state(self) -> Mapping[str, tvm_ffi.Tensor]:
        """The parameters that calls update, by name, as they are now: to be read; `load_state` changes them."""
        with self._turn:
            owner = self._now() or self._generic
        assert owner is not None
        return owner.state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from other values, as `Executable.load_state` does."""
        self.wait().load_state(state)

    def _now(self) -> Executable | None:
        """The executable of the compiled model, if there is one: it takes over the state, and torch's is freed."""
        with self._turn:
            if self._generic is not None and self._compiled.done() and self._compiled.exception() is None:
                self._executable = self._compiled.result()
                self._executable.adopt(self._generic.state)
                self._generic = None
            return self._executable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wait(), name)

    def __reduce__(self) -> Any:
        return self.wait().__reduce__()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name}: {spec}" for spec in self.signature.inputs)
        return f"StartingExecutable({inputs}; {self.status})"
