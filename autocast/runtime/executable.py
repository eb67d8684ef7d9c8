"""A compiled model that can be called."""

from __future__ import annotations

import difflib
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import tvm_ffi

from autocast.errors import InputError
from autocast.runtime import threads
from autocast.runtime.huge_pages import use_huge_pages
from autocast.runtime.machine import VirtualMachine
from autocast.runtime.mismatch import mismatch
from autocast.runtime.pool import varying_outputs
from autocast.runtime.program import CARRY, PREPARE, Program
from autocast.runtime.signature import Input, Signature
from autocast.runtime.tensors import copy, copy_into, from_tensor, kind_of, to_tensor


class Executable:
    """A model compiled for a device: `executable(*inputs)` runs it.

    Inputs are torch tensors, numpy arrays or TVM tensors, in the order of `main`'s inputs (parameters are bound).
    Outputs are of the inputs' kind: torch if any input is a torch tensor, else numpy if any is a numpy array, else
    TVM. torch and TVM tensors share memory with the VM (an input that is not dense or not aligned to 64 bytes is
    copied first); numpy arrays are copied. Calls from several threads run one after another.

    The executable of a model with updates has state: copies of the parameters that a call replaces, made when they are
    first needed, and then changed in place by each call. Where a call reads some of it in low precision, the copies in
    low precision are kept as well: calls change both, and `load_state` computes them again.

    Attributes
    ----------
    program : Program
        What there is to know of the compiled code.
    library : Module
        The compiled code.
    params : tuple of tvm_ffi.Tensor
        What is passed to `main` after the inputs: those of the model's parameters that it reads as they are, and what
        was computed from the others (cast, transposed or packed weights). State is not among them.
    device : str
        What it was compiled for.
    seconds : dict of str to float
        Where the time went that it took to make it: "lower" (to planned kernels), "generate" (LLVM's IR), "load"
        (machine code).
    """

    def __init__(
        self,
        program: Program,
        library: tvm_ffi.Module,
        params: tuple[tvm_ffi.Tensor, ...],
        initial_state: Mapping[str, tvm_ffi.Tensor],
        *,
        device: str = "cpu",
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        self.program = program
        self.library = library
        self.params = self._once(PREPARE, params, otherwise=params)
        use_huge_pages(self.params)
        self.device = device
        self.seconds = dict(seconds or {})
        self._initial_state = dict(initial_state)
        self._vm = VirtualMachine(library)
        self._main = self._vm["main"]
        self._lock = threading.RLock()
        self._last = math.inf  # seconds of the last call

    @property
    def signature(self) -> Signature:
        """What `main` takes."""
        return self.program.signature

    def __call__(self, *inputs: Any) -> Any:
        """Run `main`: one tensor, or a tuple of tensors where it returns a tuple.

        Raises
        ------
        InputError
            The inputs do not fit the signature, or what is computed of them has not the sizes that a `match_cast` or a
            function declares; the message names it, what it is and what was expected.
        """
        self.signature.bind(inputs)
        return from_tensor(self.run(self.arguments(inputs)), kind_of(inputs))

    @cached_property
    def state(self) -> dict[str, tvm_ffi.Tensor]:
        """The parameters that calls update, by name, as they are now: to be read; `load_state` changes them."""
        return {name: copy(value) for name, value in self._initial_state.items()}

    @cached_property
    def _copies(self) -> tuple[tvm_ffi.Tensor, ...]:
        """The copies of the state in low precision, which calls change."""
        return self._narrowed()

    def _narrowed(self) -> tuple[tvm_ffi.Tensor, ...]:
        """What the copies have to be, for the state as it is now."""
        with self._lock:
            return self._once(CARRY, tuple(self.state.values()), otherwise=())

    @property
    def held(self) -> tuple[Input | tvm_ffi.Tensor, ...]:
        """What `main` takes after the inputs, to ask for dtypes and shapes: the state, its copies in low precision
        (described by their types: asking makes none), then `params`."""
        return (*self._initial_state.values(), *self.program.copies, *self.params)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from other values.

        Parameters
        ----------
        state : mapping of str to torch.Tensor, numpy.ndarray or tvm_ffi.Tensor
            Values for parameters of the state, which are copied; those that it does not name stay as they are.

        Raises
        ------
        InputError
            A name that the state does not have, or a value of another dtype or shape; then nothing has changed.
        """
        if unknown := sorted(state.keys() - self.state.keys()):
            near = difflib.get_close_matches(unknown[0], self.state)
            raise InputError(
                f"load_state: {unknown[0]!r} is not part of the state, which has {len(self.state)} tensors"
                + (f"; did you mean {near[0]!r}?" if near else "; see executable.state")
            )
        values = {name: to_tensor(value) for name, value in state.items()}
        for name, value in values.items():
            got, expected = (f"{t.dtype}{list(map(int, t.shape))}" for t in (value, self.state[name]))
            if got != expected:
                raise InputError(f"load_state: {name} is {got}, expected {expected}")
        with self._lock:
            for name, value in values.items():
                copy_into(self.state[name], value)
            for kept, value in zip(self._copies, self._narrowed(), strict=True):
                copy_into(kept, value)

    def arguments(self, inputs: Any) -> tuple[tvm_ffi.Tensor, ...]:
        """The VM's arguments for checked `inputs`: they as TVM tensors, then the state, its copies, the parameters."""
        return (*(to_tensor(value) for value in inputs), *self.state.values(), *self._copies, *self.params)

    def run(self, arguments: tuple[tvm_ffi.Tensor, ...]) -> Any:
        """Run `main` on what `arguments` returned; outputs as TVM gives them."""
        threads.configure()
        with self._lock:
            if self._last > threads.WORTH_A_PAUSE:
                threads.pause_openmp()
            started = time.perf_counter()
            try:
                outputs = self._main(*arguments)
            except Exception as error:
                mended = mismatch(error, self.program.mismatches)
                if mended is None:
                    raise
                raise mended from error
            self._last = time.perf_counter() - started
        if self.program.outputs_vary:
            varying_outputs.note(outputs)
        return outputs

    @contextmanager
    def instrumented(self, callback: Any) -> Iterator[None]:
        """Within the block, `callback(function, name, before, result, *args)` is called around each VM call."""
        with self._lock:
            self._vm.set_instrument(callback)
            try:
                yield
            finally:
                self._vm.set_instrument(None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "Executable: an executable cannot be pickled or copied deeply, since its code and state belong to this "
            "process. Compile the model where it is needed, autocast.vm.compile(model); state goes along by state and "
            "load_state"
        )

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name}: {spec}" for spec in self.signature.inputs)
        state = f"; {len(self._initial_state)} updated by each call" if self._initial_state else ""
        return f"Executable({inputs}; {len(self.params)} parameters{state}; {self.device})"

    def _once(
        self, name: str, arguments: tuple[tvm_ffi.Tensor, ...], *, otherwise: tuple[tvm_ffi.Tensor, ...]
    ) -> tuple[tvm_ffi.Tensor, ...]:
        """What the program's function of this name makes of `arguments`; `otherwise` where it has none.

        Temporary storage of this one run goes back to the system, not to the pool that later calls take theirs from.
        """
        if name not in self.program.functions:
            return otherwise
        threads.configure()
        return tuple(VirtualMachine(self.library, pooled=False)[name](*arguments))
