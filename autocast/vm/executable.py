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

import tvm
from tvm import relax

from autocast import ir
from autocast.errors import InputError
from autocast.kernels.phases.prepare import PREPARE
from autocast.kernels.state.carry import CARRY
from autocast.kernels.state.state import num_state
from autocast.kernels.targets.cpu.instruction_sets import slow_dtype
from autocast.vm import threads
from autocast.vm.foreign_tensors import from_tvm, kind_of, to_tvm
from autocast.vm.huge_pages import use_huge_pages
from autocast.vm.mismatch import mismatch
from autocast.vm.pool import varying_outputs
from autocast.vm.program import CompiledProgram
from autocast.vm.signature import Input, Signature


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
    program : CompiledProgram
        The compiled code and the planned module it came from.
    signature : Signature
        What `main` takes.
    params : tuple of tvm.runtime.Tensor
        What is passed to `main` after the inputs: those of the model's parameters that it reads as they are, and what
        was computed from the others (cast, transposed or packed weights). State is not among them.
    device, target
        What it was compiled for.
    """

    def __init__(
        self,
        program: CompiledProgram,
        signature: Signature,
        params: tuple[tvm.runtime.Tensor, ...],
        initial_state: Mapping[str, tvm.runtime.Tensor],
        device: str,
        target: tvm.target.Target,
    ) -> None:
        self.program = program
        self.signature = signature
        self.params = _run(program, PREPARE, params, otherwise=params)
        use_huge_pages(self.params)
        self.device = device
        self.target = target
        self._initial_state = dict(initial_state)
        self._vm = relax.VirtualMachine(program.code, tvm.cpu())
        self._main = self._vm["main"]
        self._lock = threading.RLock()
        self._seconds = math.inf  # of the last call
        self._outputs_vary = not ir.is_static_type(program.planned["main"].ret_ty)

    def __call__(self, *inputs: Any) -> Any:
        """Run `main`: one tensor, or a tuple of tensors where it returns a tuple.

        Raises
        ------
        InputError
            The inputs do not fit the signature, or what is computed of them has not the sizes that a `match_cast` or a
            function declares; the message names it, what it is and what was expected.
        """
        self.signature.bind(inputs)
        return from_tvm(self.run(self.arguments(inputs)), kind_of(inputs))

    @cached_property
    def state(self) -> dict[str, tvm.runtime.Tensor]:
        """The parameters that calls update, by name, as they are now: to be read; `load_state` changes them."""
        return {name: _copy(value) for name, value in self._initial_state.items()}

    @cached_property
    def _copies(self) -> tuple[tvm.runtime.Tensor, ...]:
        """The copies of the state in low precision, which calls change."""
        return self._narrowed()

    def _narrowed(self) -> tuple[tvm.runtime.Tensor, ...]:
        """What the copies have to be, for the state as it is now."""
        with self._lock:
            return _run(self.program, CARRY, tuple(self.state.values()), otherwise=())

    @property
    def held(self) -> tuple[Input | tvm.runtime.Tensor, ...]:
        """What `main` takes after the inputs, to ask for dtypes and shapes: the state, its copies in low precision
        (described by their types: asking makes none), then `params`."""
        main, state = self.program.planned["main"], tuple(self._initial_state.values())
        first, count = len(self.signature.inputs) + len(state), num_state(main) - len(state)
        copies = main.params[first : first + count]
        described = [Input(var.name, ir.dtype_of(var) or "", ir.static_shape(var) or ()) for var in copies]
        return (*state, *described, *self.params)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from other values.

        Parameters
        ----------
        state : mapping of str to torch.Tensor, numpy.ndarray or tvm.runtime.Tensor
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
        values = {name: to_tvm(value) for name, value in state.items()}
        for name, value in values.items():
            got, expected = (f"{t.dtype}{list(map(int, t.shape))}" for t in (value, self.state[name]))
            if got != expected:
                raise InputError(f"load_state: {name} is {got}, expected {expected}")
        with self._lock:
            for name, value in values.items():
                self.state[name].copyfrom(value)
            for copy, value in zip(self._copies, self._narrowed(), strict=True):
                copy.copyfrom(value)

    def arguments(self, inputs: Any) -> tuple[tvm.runtime.Tensor, ...]:
        """The VM's arguments for checked `inputs`: they as TVM tensors, then the state, its copies, the parameters."""
        return (*(to_tvm(value) for value in inputs), *self.state.values(), *self._copies, *self.params)

    def run(self, arguments: tuple[tvm.runtime.Tensor, ...]) -> Any:
        """Run `main` on what `arguments` returned; outputs as TVM gives them."""
        threads.configure()
        with self._lock:
            if self._seconds > threads.WORTH_A_PAUSE:
                threads.pause_openmp()
            started = time.perf_counter()
            try:
                outputs = self._main(*arguments)
            except Exception as error:
                mended = mismatch(error, self.program.planned)
                if mended is None:
                    raise
                raise mended from error
            self._seconds = time.perf_counter() - started
        if self._outputs_vary:
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

    @property
    def slow_dtypes(self) -> tuple[str, ...]:
        """A line for each low-precision dtype that `main` stores and that its target has no fast arithmetic for."""
        main = self.program.planned["main"]
        stored = {str(binding.var.ty.dtype) for binding in _tensor_bindings(main)}
        stored |= {ir.dtype_of(param) or "" for param in main.params}
        return tuple(filter(None, (slow_dtype(dtype, self.target) for dtype in sorted(stored))))

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


def _copy(value: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    return tvm.runtime.empty(value.shape, value.dtype).copyfrom(value)


def _tensor_bindings(function: relax.Function) -> Iterator[relax.VarBinding]:
    return (
        binding
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding) and ir.is_tensor(binding.var)
    )


def _run(
    program: CompiledProgram,
    name: str,
    arguments: tuple[tvm.runtime.Tensor, ...],
    *,
    otherwise: tuple[tvm.runtime.Tensor, ...],
) -> tuple[tvm.runtime.Tensor, ...]:
    """What the program's function of this name makes of `arguments`; `otherwise` where it has none.

    Temporary storage of this one run goes back to the system, not to the pool that later calls take theirs from.
    """
    if not any(var.name_hint == name for var in program.planned.get_global_vars()):
        return otherwise
    threads.configure()
    return tuple(relax.VirtualMachine(program.code, tvm.cpu(), memory_cfg="naive")[name](*arguments))
