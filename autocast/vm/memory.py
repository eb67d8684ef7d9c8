"""How much memory a call takes: computed from the plan that the VM executes, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import tvm
from rich.table import Table

from autocast import ir
from autocast.ir.places import summary_of_places
from autocast.kernels.targets.cpu.instruction_sets import wanted_threads
from autocast.model.value import Model
from autocast.terminal import to_text
from autocast.vm.compile import compile
from autocast.vm.executable import Executable
from autocast.vm.foreign_tensors import dtype_name
from autocast.vm.plan import Replay
from autocast.vm.signature import Inputs
from autocast.vm.sizes import tensor_bytes

MIB = 2**20


class MemoryStep(NamedTuple):
    """Memory while one kernel runs, in MiB; parameters, inputs and constants are not in it.

    Attributes
    ----------
    name : str
        The kernel.
    live : float
        Intermediate and output tensors that something still needs, this kernel's outputs among them.
    workspace : float
        Temporary memory inside the kernel.
    reserved : float
        What the VM's allocator took from the system so far. It keeps freed blocks and reuses one only for an equal
        number of pages, so this is `live` at least.
    module : str
        The torch submodules that the kernel's calls come from, as `encoder.layer.*.output x12`; of a backward operator
        those of its forward one. Empty where that is not known.
    """

    name: str
    live: float
    workspace: float
    reserved: float
    module: str = ""


@dataclass(frozen=True)
class MemoryTrace(Sequence[MemoryStep]):
    """What one call takes, kernel by kernel: a sequence of `MemoryStep` in the order of execution. All in MiB.

    Attributes
    ----------
    steps : tuple of MemoryStep
        One for each kernel call.
    inputs, params, constants : float
        The call's inputs, the model's parameters (its state included), and the literal tensors in its functions.
    unknown : int
        Allocations whose size depends on data: they are counted as nothing.
    """

    steps: tuple[MemoryStep, ...]
    inputs: float
    params: float
    constants: float
    unknown: int

    @overload
    def __getitem__(self, index: int) -> MemoryStep: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MemoryStep, ...]: ...
    def __getitem__(self, index: int | slice) -> MemoryStep | tuple[MemoryStep, ...]:
        return self.steps[index]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def intermediates(self) -> float:
        """What a call adds to the process: reserved blocks (outputs among them) and the largest workspace."""
        reserved = max((step.reserved for step in self.steps), default=0.0)
        return reserved + max((step.workspace for step in self.steps), default=0.0)

    @property
    def peak_live(self) -> float:
        """The least that any allocator would need for this plan: live tensors and workspace, at the worst kernel."""
        return max((step.live + step.workspace for step in self.steps), default=0.0)

    @property
    def peak(self) -> float:
        """Everything: intermediates, inputs, parameters and constants."""
        return self.intermediates + self.inputs + self.params + self.constants

    def table(self) -> Table:
        """One row for each kernel in the order of execution; the title has the sums."""
        caption = f"{self.unknown} allocations depend on data and are not counted" if self.unknown else None
        table = Table(
            title=(
                f"peak {self.peak:.2f} MiB: intermediates {self.intermediates:.2f}, inputs {self.inputs:.2f}, "
                f"parameters {self.params:.2f}, constants {self.constants:.2f}"
            ),
            caption=caption,
        )
        table.add_column("kernel", overflow="fold")
        for name in ("live MiB", "workspace MiB", "reserved MiB"):
            table.add_column(name, justify="right", no_wrap=True)
        named = any(step.module for step in self)
        if named:
            table.add_column("module", overflow="fold")
        for step in self:
            sizes = (f"{size:.2f}" for size in (step.live, step.workspace, step.reserved))
            table.add_row(step.name, *sizes, *([step.module] if named else []))
        return table

    def __str__(self) -> str:
        return to_text(self.table())


def trace_memory(model: Model | tvm.IRModule | Executable, device: str = "cpu", args: Inputs = ()) -> MemoryTrace:
    """The memory of one call with inputs `args`, kernel by kernel.

    The first call of a process is described: from an empty allocator, on a thread pool of the configured size. Later
    calls find the reserved blocks again, and take more only if the caller still holds earlier outputs.

    Parameters
    ----------
    model : Model, IRModule or Executable
        What is called; compiled for `device` if it is not yet.
    device : str
        "cpu".
    args : sequence of tensors, or dict of str to tensor
        The inputs, in their order or by their names; only their shapes matter.

    Returns
    -------
    MemoryTrace
        Prints as a table.
    """
    executable = model if isinstance(model, Executable) else compile(model, device)
    args = executable.signature.in_order(args)
    executable.signature.bind(args)
    program = executable.program
    shapes = [tuple(int(size) for size in value.shape) for value in (*args, *executable.held)]
    replay = Replay(program.planned, program.kernels, wanted_threads()).run(shapes)
    modules = {name: summary_of_places(places) for name, places in program.places.items()}
    steps = tuple(
        MemoryStep(step.name, step.live / MIB, step.workspace / MIB, step.reserved / MIB, modules.get(step.name, ""))
        for step in replay.steps
    )
    inputs = sum(tensor_bytes(value.shape, dtype_name(value)) for value in args)
    return MemoryTrace(
        steps=steps,
        inputs=inputs / MIB,
        params=sum(tensor_bytes(value.shape, value.dtype) for value in executable.held) / MIB,
        constants=_constant_bytes(program.planned) / MIB,
        unknown=replay.unknown,
    )


def get_peak_memory(
    model: Model | tvm.IRModule | Executable,
    device: str = "cpu",
    args: Inputs = (),
    include_param: bool = True,
) -> float:
    """The peak memory of one call in MiB: inputs, intermediates, outputs, kernels' workspaces, and the parameters.

    Parameters
    ----------
    model, device, args
        As `trace_memory` takes them.
    include_param : bool
        Whether parameters and constants count.
    """
    trace = trace_memory(model, device, args)
    return trace.peak - (0.0 if include_param else trace.params + trace.constants)


def get_param_size(model: Model | Executable) -> float:
    """The size of the model's parameters in MiB; tied parameters count once."""
    params = model.params.values() if isinstance(model, Model) else model.params
    return sum(tensor_bytes(value.shape, value.dtype) for value in params) / MIB


def _constant_bytes(planned: tvm.IRModule) -> int:
    """Bytes of the distinct literal tensors in a module's functions."""
    found = {
        constant.value: tensor_bytes(ir.static_shape(constant) or (), ir.dtype_of(constant))
        for _, function in ir.relax_functions(planned)
        for constant in ir.parts_of(function, ir.ConstantExpr)
        if ir.is_tensor(constant)
    }
    return sum(found.values())
