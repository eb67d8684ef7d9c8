"""A compiled model that can be called.

One class; a third of its more than 300 lines is what its public methods say of themselves.
"""

from __future__ import annotations

import difflib
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import tvm_ffi

from autocast.container import read, to_bytes, write
from autocast.errors import ArtifactError, InputError
from autocast.messages import check_kind, check_value
from autocast.runtime import threads, torch_calls
from autocast.runtime.huge_pages import use_huge_pages
from autocast.runtime.machine import VirtualMachine
from autocast.runtime.mismatch import mismatch
from autocast.runtime.pool import Storages, varying_blocks
from autocast.runtime.processors import check_runs_here
from autocast.runtime.program import CARRY, PREPARE
from autocast.runtime.results import check_outputs
from autocast.runtime.signature import Input, Signature, described
from autocast.runtime.status import Status
from autocast.runtime.tensors import (
    copy,
    copy_into,
    dtype_name,
    from_tensor,
    is_array,
    kind_of,
    same_bits,
    to_argument,
    to_tensor,
    within,
)
from autocast.runtime.variant import ARTIFACT, MODEL, Variant, entries_of, lacking, variant_in
from autocast.runtime.writing import check_writable, write_outputs

#: What compiles the model in a file that has no code for this processor: the runtime knows nothing more of it.
_COMPILER = "autocast.vm.export"


class Executable:
    """A model compiled for a device: `executable(*inputs)` runs it.

    Inputs are torch tensors, numpy arrays or TVM tensors, in the order of `main`'s inputs (parameters are bound).
    Outputs are of the inputs' kind: torch if any input is a torch tensor, else numpy if any is a numpy array, else
    TVM. torch and TVM tensors share memory with the VM (an input that is not dense or not aligned to 64 bytes is
    copied first); numpy arrays are copied. Calls from several threads run one after another. What the model writes into
    its inputs is written into what was passed, when all else is computed.

    The executable of a model with updates has state: copies of the parameters that a call replaces, made when they are
    first needed (at once where their memory is `lent`), and then changed in place by each call. Where a call reads some
    of it in low precision, the copies in low precision are kept as well: calls change both, and `load_state` computes
    them again.

    Attributes
    ----------
    program : Program
        What there is to know of the compiled code.
    library : Library
        The compiled code.
    params : tuple of tvm_ffi.Tensor
        What is passed to `main` after the inputs: those of the model's parameters that it reads as they are, and what
        was computed from the others (cast, transposed or packed weights). State is not among them.
    device : str
        What it was compiled for.
    seconds : dict of str to float
        Where the time went that it took to make it: "lower" (to planned kernels), "generate" (machine
        code); or "look up" and "load" in the cache.
    origin : str
        Where the code comes from: "compiled", "the user's cache", "the system's cache" or "a file".
    kernel_origins : dict of str to int
        How many kernels come from where, in the same words, if the code was compiled.

    What is `lent` is memory that others write to: parameters that are read there are copied.
    """

    def __init__(
        self,
        variant: Variant,
        *,
        device: str = "cpu",
        seconds: Mapping[str, float] | None = None,
        origin: str = "a file",
        kernels: Mapping[str, int] | None = None,
        lent: Iterable[tvm_ffi.Tensor] = (),
    ) -> None:
        self.program, self.library = variant.program, variant.library
        check_runs_here(self.program.architecture, self.program.features)
        torch_calls.provide(self.program.torch_calls)
        params = tuple(variant.params)
        is_lent = within(lent)
        params = self._once(PREPARE, params, otherwise=params)
        self.params = tuple(copy(param) if is_lent(param) else param for param in params)
        # It takes as long as all else here; calls may come meanwhile, and read the pages that there are.
        threading.Thread(target=use_huge_pages, args=(self.params,), daemon=True).start()
        self.device = device
        self.seconds = dict(seconds or {})
        self.origin = origin
        self.kernel_origins = dict(kernels or {})
        self._initial_state = dict(variant.state)
        if any(map(is_lent, self._initial_state.values())):
            self.adopt(self.state)  # copied now: somebody may write before the first call
        self._start()

    def _start(self) -> None:
        """Make what each executable has of its own beside its state."""
        self._vm = VirtualMachine(self.library.module)
        self._main = self._vm["main"]
        self._lock = threading.RLock()
        self._last = math.inf  # seconds of the last call
        self._taken: list[tuple[Any, ...]] | None = None  # what the inputs were that were checked last
        self._sizes: dict[str, int] = {}  # and what they made of symbolic dimensions

    @property
    def signature(self) -> Signature:
        """What `main` takes."""
        return self.program.signature

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run `main`: one tensor, or a tuple of tensors where it returns a tuple.

        Inputs are taken by their places, and the others by their names.

        Raises
        ------
        InputError
            The inputs do not fit the signature, or what is computed of them has not the sizes that a `match_cast` or a
            function declares; the message names it, what it is and what was expected.
        """
        if named:
            inputs = self.signature.in_places(inputs, named)
        taken = list(map(described, inputs))
        sizes = None if taken == self._taken else self.signature.bind(inputs)
        if sizes is not None:
            self._taken, self._sizes = taken, sizes
            varying_blocks.hold(self._storages.blocks(value.shape for value in inputs))
        self.signature.check_rows(inputs, self._sizes)
        written = [inputs[i] for i in self.signature.written]
        check_writable(self.signature.written, inputs)
        returned = self.run((*map(to_argument, inputs), *self._bound()))
        if sizes is not None:
            check_outputs(self.signature.outputs, returned, sizes)
        outputs = from_tensor(returned, kind_of(inputs))
        return write_outputs(outputs, written) if written else outputs

    @cached_property
    def _storages(self) -> Storages:
        return Storages(self.program)

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

    def adopt(self, state: Mapping[str, tvm_ffi.Tensor]) -> None:
        """Go on with these tensors themselves as the state, all of it: calls change them in place."""
        self.__dict__["state"] = dict(state)

    def share(self, other: Executable) -> None:
        """Go on with the state of another program of the same model, and with its parameters that are the same bits.

        Copies of the state in low precision are shared by their names: each program has those of the other, or none.
        """
        self.adopt({name: other.state[name] for name in self._initial_state})
        copies = dict(zip((copy.name for copy in other.program.copies), other._copies, strict=True))
        self.__dict__["_copies"] = tuple(copies[copy.name] for copy in self.program.copies)
        known: defaultdict[tuple[str, tuple[int, ...]], list[tvm_ffi.Tensor]] = defaultdict(list)
        for param in other.params:
            known[str(param.dtype), tuple(param.shape)].append(param)
        self.params = tuple(
            next((one for one in known[str(param.dtype), tuple(param.shape)] if same_bits(one, param)), param)
            for param in self.params
        )

    def fork(self) -> Executable:
        """Another executable of the same code and parameters, in the same memory, which goes on from a copy of the
        state: for several sequences, each of which updates its own."""
        other = object.__new__(type(self))
        with self._lock:
            vars(other).update({name: value for name, value in vars(self).items() if name != "_copies"})
            other.adopt({name: copy(value) for name, value in self.state.items()})
        other._start()
        return other

    @property
    def status(self) -> Status:
        """What computes the model's operators: all of them kernels that were compiled for it."""
        return Status(0, len(self.program.kernels), self.kernel_origins or {self.origin: len(self.program.kernels)})

    def wait(self, timeout: float | None = None) -> Executable:
        """This executable: nothing of it is still to be compiled."""
        return self

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
        values = checked_state(self.state, state)
        with self._lock:
            for name, value in values.items():
                copy_into(self.state[name], value)
            for kept, value in zip(self._copies, self._narrowed(), strict=True):
                copy_into(kept, value)

    def arguments(self, inputs: Any) -> tuple[tvm_ffi.Tensor, ...]:
        """The VM's arguments for checked `inputs`: they as TVM tensors, then the state, its copies, the parameters."""
        return (*map(to_tensor, inputs), *self._bound())

    def _bound(self) -> tuple[tvm_ffi.Tensor, ...]:
        """What `main` takes after the inputs."""
        return (*self.state.values(), *self._copies, *self.params)

    def run(self, arguments: tuple[tvm_ffi.Tensor, ...]) -> Any:
        """Run `main` on what `arguments` returned; outputs as TVM gives them."""
        with self._lock:
            if self._last > threads.WORTH_A_PAUSE:
                threads.pause_openmp()
            started = time.perf_counter()
            try:
                outputs = threads.call(self._main, *arguments)
            except Exception as error:
                mended = mismatch(error, self.program.mismatches)
                if mended is None:
                    raise
                raise mended from error
            self._last = time.perf_counter() - started
        if self.program.outputs_vary:
            varying_blocks.note(outputs)
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

    def variant(self) -> Variant:
        """What a file has to hold of this executable: state as it is now."""
        with self._lock:
            state = {name: copy(value) for name, value in self.state.items()}
        return Variant(self.program.prepared(), self.library, self.params, state)

    def export(self, path: str | os.PathLike[str], *, key: bytes | None = None) -> Path:
        """Write the compiled code, its parameters and its state to one file, which `autocast.runtime.load` runs.

        The file needs neither torch nor a compiler where it is loaded, and a processor with the instructions of this
        one. `autocast.vm.export` writes files for several kinds of processors.

        Parameters
        ----------
        path : path
            The folders above it are made if they are missing; the file is whole or is not there.
        key : bytes, optional
            Sign the file with this key (HMAC-SHA256), which whoever loads it may ask for.

        Raises
        ------
        ArtifactError
            The file cannot be written, or there was no linker when the model was compiled.

        Warns
        -----
        FallbackWarning
            The model calls operators of torch, so that torch has to be where the file is loaded.
        """
        torch_calls.warn(self.program.torch_calls, "Executable.export")
        entries, metadata = entries_of([self.variant()])
        return write(path, ARTIFACT, entries, metadata, key=key)

    def __reduce__(self) -> tuple[Callable[[bytes], Executable], tuple[bytes]]:
        """Pickled and copied deeply as the file that `export` writes: with its state, without this process's memory."""
        entries, metadata = entries_of([self.variant()])
        return executable_of, (to_bytes(ARTIFACT, entries, metadata),)

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
        return tuple(threads.call_apart(VirtualMachine(self.library.module, pooled=False)[name], *arguments))


def checked_state(held: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
    """New values for what is `held` by an executable, as tensors; InputError where one fits nothing of it."""
    check_kind("load_state", state, Mapping, InputError, "tensors by the names of executable.state")
    if unknown := sorted(state.keys() - held.keys()):
        near = difflib.get_close_matches(unknown[0], held)
        raise InputError(
            f"load_state: {unknown[0]!r} is not part of the state, which has {len(held)} tensors"
            + (f"; did you mean {near[0]!r}?" if near else "; see executable.state")
        )
    for name, value in state.items():
        check_value("load_state", name, value, is_array, InputError, "a torch tensor, numpy array or TVM tensor")
    values = {name: to_tensor(value) for name, value in state.items()}
    for name, value in values.items():
        got, expected = (f"{dtype_name(t)}{list(map(int, t.shape))}" for t in (value, held[name]))
        if got != expected:
            raise InputError(f"load_state: {name} is {got}, expected {expected}")
    return values


def load(path: str | os.PathLike[str] | bytes, *, key: bytes | None = None) -> Executable:
    """The executable in a file that `Executable.export` or `autocast.vm.export` wrote.

    Where the file has code for other processors only, and the model itself, that is compiled.

    Nothing of the file is used before all of it was checked. Loading executes what is in the file: load what you trust,
    and have it signed where others could write to it.

    Parameters
    ----------
    path : path or bytes
        The parameters are mapped from the file, not read: it must not be changed in place while they are used.
    key : bytes, optional
        The key that the file must be signed with.

    Raises
    ------
    ArtifactError
        There is no such file, it was damaged, its signature is not of this key, or it has no code for this processor.
    """
    container = read(path, ARTIFACT, key=key)
    variant = variant_in(container)
    if variant is None and MODEL in container.names:
        executable: Executable = import_module(_COMPILER).compiled_here(container[MODEL])
        return executable
    if variant is None:
        raise ArtifactError(
            f"autocast.runtime.load: {path if not isinstance(path, bytes) else 'the bytes'} has code for "
            f"{'; '.join(lacking(container))}, expected one for this processor. Try autocast.vm.export(model, path, "
            "targets=[...]) with its name, such as x86-64-v3, where the model is"
        )
    return Executable(variant)


def executable_of(data: bytes) -> Executable:
    """The executable that was pickled as `data`."""
    return load(data)
